"""A live bus, by python-can's virtual interface."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import can
import numpy as np
import pytest
from can.interfaces.virtual import VirtualBus

from kdgat.base import UserError
from kdgat.canbus import Messages, RecordingError, open_bus
from kdgat.canbus.stream import MessageStream
from tests.canbus.log_files import error_frame, fd_frame, frames, remote_frame
from tests.canbus.recording_files import assert_same_traffic, joined, random_messages

TIMEOUT_S = 30.0


@pytest.fixture
def sender(request: pytest.FixtureRequest) -> Iterator[VirtualBus]:
    # A channel of its own: virtual buses of one name are one bus in the whole process.
    with VirtualBus(channel=request.node.name, preserve_timestamps=True) as bus:
        yield bus


def _read(sender: VirtualBus, **options: Any) -> MessageStream:
    return open_bus(str(sender.channel_id), "virtual", **options)


def _take(stream: MessageStream, num_messages: int) -> Messages:
    chunks: list[Messages] = []
    while sum(len(chunk) for chunk in chunks) < num_messages:
        chunks.append(next(stream))
    return joined(chunks)


def _wait_until(is_true: Any) -> None:
    give_up_at = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_messages_of_a_bus_come_as_they_were_sent(sender: VirtualBus) -> None:
    written = random_messages(500)
    with _read(sender, scenario="live") as stream:
        for frame in frames(written, None):
            sender.send(frame)
        read = _take(stream, 500)
    assert_same_traffic(read, written)
    assert (read.labelled, read.scenario, read.name) == (False, "live", sender.channel_id)
    assert (stream.status.num_messages, stream.status.num_dropped, stream.status.num_bad_rows) == (500, 0, 0)


def test_chunks_hold_what_arrived_and_no_more_than_is_asked_for(sender: VirtualBus) -> None:
    with _read(sender, max_messages=64, max_delay_s=0.05) as stream:
        sender.send(remote_frame(1.0))
        assert len(next(stream)) == 1  # without waiting for more to come
        for frame in frames(random_messages(200), None):
            sender.send(frame)
        sizes: list[int] = []
        while sum(sizes) < 200:
            sizes.append(len(next(stream)))
    assert max(sizes) <= 64


def test_only_frames_that_are_messages_are_handed_on(sender: VirtualBus) -> None:
    fd = can.Bus(channel=sender.channel_id, interface="virtual", protocol=can.CanProtocol.CAN_FD)
    with fd, _read(sender) as stream:
        sender.send(error_frame(1.0))
        fd.send(fd_frame(2.0))
        sender.send(remote_frame(3.0))
        read = _take(stream, 1)
    assert (read.identifier.tolist(), read.length.tolist()) == ([0x123], [0])
    assert (stream.status.passed_over, stream.status.num_bad_rows) == ({"error frame": 1, "CAN FD frame": 1}, 0)


def test_slow_reader_loses_the_oldest_messages_and_is_told(sender: VirtualBus) -> None:
    written = random_messages(500)
    with _read(sender, max_pending=100) as stream:
        for frame in frames(written, None):
            sender.send(frame)
        _wait_until(lambda: stream.status.num_dropped == 400)
        read = _take(stream, 100)
    np.testing.assert_array_equal(read.identifier, written.identifier[400:])


def test_stop_event_ends_the_stream_behind_what_arrived(sender: VirtualBus) -> None:
    stop = threading.Event()
    stream = _read(sender, stop=stop)
    for frame in frames(random_messages(50), None):
        sender.send(frame)
    first = _take(stream, 50)
    threading.Timer(0.1, stop.set).start()
    assert list(stream) == []
    assert len(first) == 50
    stream.close()
    assert not any(thread.name == f"bus {sender.channel_id}" for thread in threading.enumerate())


def test_closed_stream_ends_while_another_thread_waits_for_it(sender: VirtualBus) -> None:
    stream = _read(sender)
    waiting = threading.Thread(target=lambda: list(stream))
    waiting.start()
    stream.close()
    waiting.join(TIMEOUT_S)
    assert not waiting.is_alive()


class FailingBus:
    """Hand out virtual buses that are shut down under their reader, or cannot be opened, when it is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[can.BusABC] = []
        self.is_away = False
        self._open = can.Bus
        monkeypatch.setattr(can, "Bus", self)

    def __call__(self, **options: Any) -> can.BusABC:
        if self.is_away:
            raise can.CanInitializationError("no such device")
        self.opened.append(self._open(**options))
        return self.opened[-1]


def test_bus_that_fails_is_opened_anew(sender: VirtualBus, monkeypatch: pytest.MonkeyPatch) -> None:
    buses = FailingBus(monkeypatch)
    with _read(sender) as stream:
        sender.send(remote_frame(100.0, 0x1))
        assert _take(stream, 1).identifier.tolist() == [0x1]
        buses.is_away = True
        buses.opened[0].shutdown()
        _wait_until(lambda: "no such device" in stream.status.last_error)
        buses.is_away = False
        _wait_until(lambda: stream.status.num_reconnects == 1)
        sender.send(remote_frame(0.5, 0x2))  # an interface that counts from its start
        sender.send(remote_frame(0.75, 0x3))
        read = _take(stream, 2)
    assert read.identifier.tolist() == [0x2, 0x3]
    assert read.timestamp[0] >= 100.0
    assert read.timestamp[1] - read.timestamp[0] == pytest.approx(0.25)


def test_stream_ends_while_the_bus_is_away(sender: VirtualBus, monkeypatch: pytest.MonkeyPatch) -> None:
    buses = FailingBus(monkeypatch)
    stream = _read(sender)
    buses.is_away = True
    buses.opened[0].shutdown()
    _wait_until(lambda: "no such device" in stream.status.last_error)
    stream.close()
    assert list(stream) == []


def test_timestamps_never_run_backwards(sender: VirtualBus) -> None:
    with _read(sender) as stream:
        for sent in (10.0, 10.5, 10.4, 10.6, 3.0, 3.5):
            sender.send(remote_frame(sent))
        timestamp = _take(stream, 6).timestamp
    assert timestamp[:4].tolist() == [10.0, 10.5, 10.5, 10.6]
    assert 10.6 <= timestamp[4] < 10.6 + TIMEOUT_S
    assert timestamp[5] - timestamp[4] == pytest.approx(0.5)


def test_bus_that_cannot_be_opened_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"nonsense:can9: cannot be opened .*check interface, channel and bitrate"):
        open_bus("can9", "nonsense")
    monkeypatch.setitem(sys.modules, "can", None)
    with pytest.raises(RecordingError, match=r"virtual:x: is a live bus, which python-can reads; .*kdgat\[logs\]"):
        open_bus("x", "virtual")
