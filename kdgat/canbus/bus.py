"""Messages of a live CAN bus through python-can, as a stream of small chunks."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from kdgat.base import UserError
from kdgat.canbus.messages import CAN_FD_FRAME, ERROR_FRAME, MAX_PAYLOAD_BYTES, Messages
from kdgat.canbus.readers.detect import load_library
from kdgat.canbus.stream import MessageStream, StreamStatus

logger = logging.getLogger(__name__)

MAX_DELAY_S = 0.01
"""How long a message waits for others of its chunk."""
MAX_PENDING_MESSAGES = 100_000
"""Messages that wait for a slow reader, half a minute of a busy bus; from then on the oldest are dropped."""
_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S = 0.1, 5.0
_RECEIVE_S = 0.05  # a silent bus is left that often, to look whether the stream shall end
_CLOCK_STEP_S = 1.0  # a timestamp that is earlier by more is one of a clock that was set, or begun anew
_PADDING = bytes(MAX_PAYLOAD_BYTES)


class _Frame(NamedTuple):
    timestamp: float
    identifier: int
    data: bytes


def open_bus(
    channel: str | int,
    interface: str,
    bitrate: int | None = None,
    *,
    max_messages: int = 1000,
    max_delay_s: float = MAX_DELAY_S,
    max_pending: int = MAX_PENDING_MESSAGES,
    stop: threading.Event | None = None,
    scenario: str = "",
    **options: Any,
) -> MessageStream:
    """Read a live bus by any interface of python-can (`socketcan`, `pcan`, `vector`, `virtual`, ...).

    A chunk is returned `max_delay_s` after its first message, or with `max_messages`. Once opened, a bus that fails is
    opened anew until it works again, and counted in `num_reconnects`. Timestamps are those of the interface, and never
    run backwards. Error frames are passed over; a remote frame is a message without bytes, as in a recording. The
    stream ends when `stop` is set or it is closed. `options` go to `can.Bus`.

    Raises:
        UserError: if the bus cannot be opened; RecordingError if python-can is not installed.

    >>> import can
    >>> with open_bus("example", "virtual") as stream, can.Bus(channel="example", interface="virtual") as sender:
    ...     sender.send(can.Message(arbitration_id=0x123, data=[1, 2], is_extended_id=False))
    ...     messages = next(stream)
    >>> messages.identifier.tolist(), messages.length.tolist()
    ([291], [2])
    """
    can = load_library("can", f"{interface}:{channel}", "a live bus, which python-can reads")
    if bitrate is not None:
        options["bitrate"] = bitrate
    receiver = _Receiver(can, {"channel": channel, "interface": interface, **options}, max_pending, stop)
    chunks = receiver.chunks(max_messages, max_delay_s, str(channel), scenario)
    return MessageStream(chunks, receiver.status, receiver.close)


class _Receiver:
    """Take frames from the bus as they come, so that only memory of this process bounds a slow reader."""

    def __init__(
        self, can: ModuleType, options: dict[str, Any], max_pending: int, stop: threading.Event | None
    ) -> None:
        self.status = StreamStatus()
        self._can = can
        self._options = options
        self._name = f"{options['interface']}:{options['channel']}"
        self._stop = stop
        self._closed = threading.Event()
        self._pending: deque[_Frame] = deque(maxlen=max_pending)
        self._arrival = threading.Condition()
        self._ended = False
        self._failure: Exception | None = None
        self._clock = _Clock(self._name)
        try:
            self._bus = can.Bus(**options)
        except Exception as error:  # drivers raise what they like: a missing library, device, right or option
            raise UserError(
                f"{self._name}: cannot be opened ({type(error).__name__}: {error}); check interface, channel and "
                "bitrate, for SocketCAN `ip link show`; interfaces of python-can are listed in its documentation"
            ) from error

        self._thread = threading.Thread(target=self._run, name=f"bus {options['channel']}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the stream, and wait until the bus is let go."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:  # raised where the stream is read
            self._failure = error
        finally:
            self._shut_down()
            with self._arrival:
                self._ended = True
                self._arrival.notify()

    def _receive(self) -> None:
        """Receive until the stream ends; a failing bus is opened anew."""
        backoff_s = _FIRST_BACKOFF_S
        while not self._is_stopped():
            try:
                if self._bus is None:
                    self._bus = self._can.Bus(**self._options)
                    self._clock.begin_anew()
                    self.status.num_reconnects += 1
                    logger.info("%s: opened again", self._name)
                message = self._bus.recv(timeout=_RECEIVE_S)
            except Exception as error:  # beside can.CanError whatever a driver raises when its device is gone
                self._fail(error, backoff_s)
                backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)
                continue
            if message is not None:
                backoff_s = _FIRST_BACKOFF_S
                self._take(message)

    def _is_stopped(self) -> bool:
        return self._closed.is_set() or (self._stop is not None and self._stop.is_set())

    def _fail(self, error: Exception, backoff_s: float) -> None:
        text = f"{self._name}: {type(error).__name__}: {error}"
        if text != self.status.last_error:  # of a bus that stays away once
            logger.warning("%s; opening it again", text)
        self.status.last_error = text
        self._shut_down()
        end = time.monotonic() + backoff_s
        while not self._is_stopped() and time.monotonic() < end:
            self._closed.wait(min(_RECEIVE_S, backoff_s))

    def _shut_down(self) -> None:
        bus, self._bus = self._bus, None
        if bus is None:
            return
        try:
            bus.shutdown()
        except Exception as error:  # of a device that is gone
            logger.debug("%s: shutting it down: %s", self._name, error)

    def _take(self, message: Any) -> None:
        status = self.status
        if message.is_error_frame:
            status.passed_over[ERROR_FRAME] += 1
            return
        if message.is_fd or len(message.data) > MAX_PAYLOAD_BYTES:
            status.passed_over[CAN_FD_FRAME] += 1
            return
        data = b"" if message.is_remote_frame else bytes(message.data)
        frame = _Frame(self._clock.follow(message.timestamp), message.arbitration_id, data)
        with self._arrival:
            if len(self._pending) == self._pending.maxlen:
                if not status.num_dropped:
                    logger.warning("%s: messages are read too slowly; the oldest are dropped", self._name)
                status.num_dropped += 1
            self._pending.append(frame)
            self._arrival.notify()

    def chunks(self, max_messages: int, max_delay_s: float, name: str, scenario: str) -> Iterator[Messages]:
        """Yield what arrived, until the stream ends and nothing is left."""
        while frames := self._wait(max_messages, max_delay_s):
            num = len(frames)
            payload = b"".join((frame.data + _PADDING)[:MAX_PAYLOAD_BYTES] for frame in frames)
            self.status.num_messages += num
            yield Messages(
                timestamp=np.fromiter((frame.timestamp for frame in frames), np.float64, num),
                identifier=np.fromiter((frame.identifier for frame in frames), np.uint32, num),
                payload=np.frombuffer(payload, np.uint8).reshape(num, MAX_PAYLOAD_BYTES).copy(),
                length=np.fromiter((len(frame.data) for frame in frames), np.uint8, num),
                label=np.zeros(num, np.uint8),
                name=name,
                scenario=scenario,
                labelled=False,
            )
        if self._failure is not None:
            raise self._failure

    def _wait(self, max_messages: int, max_delay_s: float) -> list[_Frame]:
        with self._arrival:
            while not self._pending and not self._ended:
                self._arrival.wait()
            end = time.monotonic() + max_delay_s
            while len(self._pending) < max_messages and not self._ended:
                if (left_s := end - time.monotonic()) <= 0.0:
                    break
                self._arrival.wait(left_s)
            return [self._pending.popleft() for _ in range(min(max_messages, len(self._pending)))]


class _Clock:
    """Make timestamps that never run backwards of those of an interface."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: float | None = None
        self._last_seen_at = 0.0
        self._offset_s = 0.0
        self._is_new = False

    def begin_anew(self) -> None:
        """Expect that the interface may count from zero again."""
        self._is_new = True

    def follow(self, timestamp: float) -> float:
        """Return seconds for a message: its timestamp, later where that would run backwards."""
        now = time.monotonic()
        seconds = (timestamp or time.time()) + self._offset_s
        if self._last is not None and seconds < self._last:
            if self._is_new or self._last - seconds > _CLOCK_STEP_S:
                # Time went on meanwhile, by the clock of this machine.
                step_s = self._last + (now - self._last_seen_at) - seconds
                logger.warning("%s: its clock went back; %.3f s are added from here on", self._name, step_s)
                self._offset_s += step_s
                seconds += step_s
            else:
                seconds = self._last
        self._last, self._last_seen_at, self._is_new = seconds, now, False
        return seconds
