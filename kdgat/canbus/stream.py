"""Messages as a stream of chunks in order, with bounded memory: of a finished recording, or of a log that grows."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from kdgat.base import UserError
from kdgat.canbus.conversion import Conversion
from kdgat.canbus.labelling import label_by_surroundings, label_by_times, labels_beside
from kdgat.canbus.logs import LEAST_BLOCK_BYTES, end_of_lines, read_portions, read_recording, refuse_damage
from kdgat.canbus.messages import AttackCampaign, BadRow, Messages, ReadLimits, ReadOptions, RecordingError
from kdgat.canbus.names import recording_name
from kdgat.canbus.pipes import as_file, is_pipe, text_blocks
from kdgat.canbus.readers.detect import FileFormat, find_format
from kdgat.canbus.readers.labels import refuse_unknown_words
from kdgat.canbus.readers.limits import refuse_holes
from kdgat.canbus.readers.packing import packing_of
from kdgat.canbus.readers.rows import (
    Rows,
    RowStatus,
    count_channels,
    judge_timestamps,
    mark_other_channels,
    several_channels,
    take_good_rows,
    unknown_channel,
)

if TYPE_CHECKING:
    from kdgat.canbus.readers.text import LineParser

logger = logging.getLogger(__name__)

DEFAULT_CHUNK_MESSAGES = 1 << 16
"""Messages of a chunk at most, by default."""
_SETTLE_S = 1.0  # so long the first lines of a growing log may take to come before its format is decided


@dataclass(slots=True)
class StreamStatus:
    """Count what a stream has returned and what it has met; it grows while the stream is read."""

    num_messages: int = 0  # returned
    num_bad_rows: int = 0  # damaged lines
    passed_over: Counter[str] = field(default_factory=Counter)  # by kind: no messages, and no damage
    num_dropped: int = 0  # messages of a bus that the reader of the stream was too slow for
    num_reconnects: int = 0  # how often a bus was opened anew, or a log begun anew
    last_error: str = ""  # in words
    bad_rows: list[BadRow] = field(default_factory=list)  # the first ones
    channel_counts: dict[str, int] = field(default_factory=dict)  # messages of each channel that was met


class MessageStream(Iterator[Messages]):
    """Iterate over chunks of messages in order; `status` counts. Close it, or use it in a `with`, to end it early."""

    def __init__(self, chunks: Iterator[Messages], status: StreamStatus, on_close: Callable[[], None]) -> None:
        """Hand on `chunks`, which update `status`."""
        self.status = status
        self._chunks = chunks
        self._on_close = on_close

    def __next__(self) -> Messages:
        """Return the next chunk, at least one message; wait for it where the stream is live."""
        return next(self._chunks)

    def close(self) -> None:
        """Let go of the file or the bus; the stream ends."""
        self._on_close()

    def __enter__(self) -> Self:
        """Return the stream."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        self.close()


def stream_recording(
    path: Path | str,
    size: int = DEFAULT_CHUNK_MESSAGES,
    *,
    channel: str | int | None = None,
    scenario: str | None = None,
    limits: ReadLimits | None = None,
    options: ReadOptions | None = None,
    stop: threading.Event | None = None,
) -> MessageStream:
    """Read a finished recording in chunks of at most `size` messages: those of `read_recording`, in the same order.

    A pipe, as standard input (`-`), gives its messages as they come, until it or `stop` ends it.
    Text, BLF and PCAP take the memory of a chunk; Parquet and MF4 are read whole first. What `read_recording` refuses
    is refused here, too, but only where it shows: several channels at the first portion with a message of the second,
    and bad rows at the end.

    Raises:
        RecordingError: as `read_recording`, from the call or while the stream is read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "drive.csv")
    ...     _ = path.write_text("timestamp,id,data_field\\n" + "1.5,123,0102\\n" * 250)
    ...     with stream_recording(path, 100) as stream:
    ...         print([len(messages) for messages in stream], stream.status.num_messages)
    [100, 100, 50] 250
    """
    path = as_file(Path(path))
    piped = is_pipe(path)
    if not piped and not path.is_file():
        raise RecordingError(path, f"is {'a folder' if path.is_dir() else 'no file'}; name one recording")
    if not piped:
        refuse_holes(path)
    options = options or ReadOptions()
    cutter = _Cutter(path, size, channel, scenario, limits or ReadLimits(), options)
    stop = stop or threading.Event()
    pipe = _PipeFollower(path, cutter.status, options, stop, True, None, 0.0)

    def chunks() -> Generator[Messages, None, None]:
        found = FileFormat.TEXT if piped else find_format(path)
        if found is FileFormat.PARQUET:
            from kdgat.canbus.readers.parquet import read_campaigns

            cutter.campaigns = read_campaigns(path)
        portions = pipe.portions() if piped else read_portions(path, found, size, options)
        for rows in portions:
            if cutter.meets_another_channel(rows):
                for others in () if piped else portions:  # so that the error tells how many each channel has
                    cutter.meets_another_channel(others)
                raise several_channels(path, cutter.status.channel_counts)
            yield from cutter.cut(rows)
        if not (piped and stop.is_set()):
            cutter.finish()

    generator = chunks()
    return MessageStream(generator, cutter.status, generator.close)


def stream_labelled(
    path: Path | str,
    *,
    channel: str | int | None = None,
    scenario: str | None = None,
    limits: ReadLimits | None = None,
    options: ReadOptions | None = None,
    attacks: Path | None = None,
) -> MessageStream:
    """Read a finished recording in chunks that have the labels of `read_recording`, or those of a file `attacks`.

    Times of attacks are looked up in the whole recording: where a file tells them, it comes as one chunk.

    Raises:
        RecordingError: as `stream_recording`, and for `attacks` of a recording that has labels of its own.
    """
    path = as_file(Path(path))
    told_scenario = recording_name(path)[0] if scenario is None else scenario
    if attacks is None and not isinstance(labels_beside(path, told_scenario), Path):
        stream = stream_recording(path, channel=channel, scenario=scenario, limits=limits, options=options)
        return MessageStream((_labelled(chunk, path) for chunk in stream), stream.status, stream.close)
    messages = read_recording(path, channel=channel, scenario=scenario, limits=limits, options=options)
    if attacks is not None:
        if messages.labelled and not messages.labels_from:
            raise RecordingError(path, f"has labels of its own; leave --attacks {attacks} out")
        label_by_times(messages, path, attacks, options)
    status = StreamStatus(len(messages), messages.num_bad_rows, messages.passed_over, bad_rows=messages.bad_rows)
    return MessageStream(iter([messages]), status, lambda: None)


def _labelled(messages: Messages, path: Path) -> Messages:
    if not messages.labelled:
        label_by_surroundings(messages, path)
    return messages


def follow_file(
    path: Path | str,
    size: int = DEFAULT_CHUNK_MESSAGES,
    *,
    channel: str | int | None = None,
    scenario: str | None = None,
    options: ReadOptions | None = None,
    stop: threading.Event | None = None,
    stop_at_end: bool = False,
    idle_s: float | None = None,
    poll_s: float = 0.02,
) -> MessageStream:
    """Read a log of lines from its beginning and continue while it grows, as `tail -F` does, or a pipe to its end.

    Half a line waits for its rest. A log that is truncated, or replaced by another of its name, is begun anew and
    counted in `num_reconnects`. The stream ends when `stop` is set (half a line is left then), with `stop_at_end` at
    the end of the file, and when nothing came for `idle_s` seconds. Damaged lines are counted, never refused.

    Raises:
        RecordingError: for a file that is not there, has no known format, or names several channels and none is chosen.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "live.log")
    ...     _ = path.write_text("(1.25) can0 123#0102\\n(1.26) can0 7FF#\\n")
    ...     with follow_file(path, stop_at_end=True) as stream:
    ...         print([messages.identifier.tolist() for messages in stream])
    [[291, 2047]]
    """
    path = as_file(Path(path))
    piped = is_pipe(path)
    if not piped and not path.is_file():
        raise RecordingError(path, "is no file; name the log to follow")
    if not piped and path.stat().st_size and (found := find_format(path)) is not FileFormat.TEXT:
        raise RecordingError(
            path, f"is a {found} file, which cannot be followed; log lines, for instance by candump -L"
        )
    if not piped and (packing := packing_of(path)) is not None:
        raise RecordingError(
            path,
            f"is packed by {packing.name}, and cannot be followed; follow the log that is written, or read it as one",
        )
    options = options or ReadOptions()
    cutter = _Cutter(path, size, channel, scenario, ReadLimits(), options)
    follower = (_PipeFollower if piped else _Follower)(
        path, cutter.status, options, stop or threading.Event(), stop_at_end, idle_s, poll_s
    )

    def chunks() -> Iterator[Messages]:
        for rows in follower.portions():
            if cutter.meets_another_channel(rows):
                raise several_channels(path, cutter.status.channel_counts)
            yield from cutter.cut(rows)

    return MessageStream(chunks(), cutter.status, follower.close)


class _Cutter:
    """Turn rows into chunks of messages, and count them."""

    def __init__(
        self,
        path: Path,
        size: int,
        channel: str | int | None,
        scenario: str | None,
        limits: ReadLimits,
        options: ReadOptions,
    ) -> None:
        if size < 1:
            raise UserError(f"size={size}: a chunk needs at least one message; give a positive number")
        self.status = StreamStatus()
        self._path = path
        self._size = size
        self._channel = None if channel is None else str(channel)
        path_scenario, self._name = recording_name(path)
        self._scenario = path_scenario if scenario is None else scenario
        self._limits = limits
        self._unknown_labels = Counter[str]()
        self._conversion = Conversion(path, options)
        self.campaigns: tuple[AttackCampaign, ...] = ()

    def meets_another_channel(self, rows: Rows) -> bool:
        """Count the messages of each channel of a portion; return whether there are several and none is chosen."""
        channel_counts = self.status.channel_counts
        for name, count in count_channels(rows).items():
            channel_counts[name] = channel_counts.get(name, 0) + count
        return self._channel is None and len(channel_counts) > 1

    def cut(self, rows: Rows) -> Iterator[Messages]:
        """Yield the good rows of a portion."""
        status = self.status
        self._conversion.convert_stamps(rows)
        if self._channel is not None:
            mark_other_channels(rows, self._path, self._channel)
        judge_timestamps(rows)
        self._unknown_labels += rows.unknown_labels
        messages = take_good_rows(
            rows, self._name, self._scenario, self._limits.max_listed_bad_rows - len(status.bad_rows)
        )
        status.bad_rows += messages.bad_rows
        status.num_bad_rows += messages.num_bad_rows
        messages = self._conversion.drop_echoes(messages)
        messages.campaigns = self.campaigns
        status.passed_over += messages.passed_over
        for start in range(0, len(messages), self._size):
            chunk = messages.select(slice(start, start + self._size))
            status.num_messages += len(chunk)
            yield chunk

    def finish(self) -> None:
        """Refuse what a finished recording is refused for."""
        status = self.status
        if self._channel is not None and self._channel not in status.channel_counts:
            raise unknown_channel(self._path, self._channel, status.channel_counts)
        refuse_unknown_words(self._path, self._unknown_labels)
        refuse_damage(
            self._path, status.num_messages, status.num_bad_rows, status.bad_rows, status.passed_over, self._limits
        )


class _Follower:
    """Read the lines of a file that grows."""

    def __init__(
        self,
        path: Path,
        status: StreamStatus,
        options: ReadOptions,
        stop: threading.Event,
        stop_at_end: bool,
        idle_s: float | None,
        poll_s: float,
    ) -> None:
        self._path = path
        self._status = status
        self._options = options
        self._stop = stop
        self._stop_at_end = stop_at_end
        self._idle_s = idle_s
        self._poll_s = poll_s
        self._closed = threading.Event()
        self._begin()

    def close(self) -> None:
        """End the stream, also while it waits."""
        self._closed.set()

    def _begin(self) -> None:
        self._parser: LineParser | None = None
        self._pending = bytearray()
        self._begun_at = time.monotonic()

    def portions(self) -> Iterator[Rows]:
        """Yield the lines that came, as soon as they are whole."""
        stream = self._path.open("rb", buffering=0)
        last_growth = time.monotonic()
        try:
            while not self._closed.is_set():
                if block := stream.read(LEAST_BLOCK_BYTES):
                    last_growth = time.monotonic()
                    self._pending += block
                    yield from self._whole_lines()
                    continue
                yield from self._whole_lines()
                if self._stop.is_set():
                    yield from self._whole_lines(settled=True)
                    return
                idle = self._idle_s is not None and time.monotonic() - last_growth >= self._idle_s
                change = self._change(stream.fileno(), stream.tell())
                if change == "replaced":
                    if block := stream.read(LEAST_BLOCK_BYTES):  # written between the two looks
                        self._pending += block
                        continue
                    yield from self._all_lines()
                    stream.close()
                    stream = self._path.open("rb", buffering=0)
                    self._begin_anew("it was replaced by another file of its name")
                elif change == "truncated":
                    yield from self._whole_lines(settled=True)
                    if self._pending and self._parser is not None:
                        yield self._parser.damage(RowStatus.TRUNCATED)
                    stream.seek(0)
                    self._begin_anew("it was truncated")
                elif self._stop_at_end or idle:
                    yield from self._all_lines()
                    return
                else:
                    self._stop.wait(self._poll_s)
        finally:
            stream.close()

    def _begin_anew(self, reason: str) -> None:
        self._status.num_reconnects += 1
        self._status.last_error = f"{self._path}: {reason}"
        logger.warning("%s: %s; reading goes on from the beginning", self._path, reason)
        self._begin()

    def _change(self, descriptor: int, position: int) -> str:
        try:
            named, opened = self._path.stat(), os.fstat(descriptor)
        except FileNotFoundError:  # between the renaming of the old log and the beginning of the new one
            return ""
        if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            return "replaced"
        return "truncated" if opened.st_size < position else ""

    def _whole_lines(self, settled: bool = False) -> Iterator[Rows]:
        """Take the whole lines that wait; first the format must be clear, or as clear as it becomes."""
        if self._parser is not None:
            newline = self._parser.layout.newline
        else:  # of what ends with half an end of line nobody knows
            newline = "\r" if b"\r" in self._pending[:-1] and b"\n" not in self._pending else "\n"
        end = end_of_lines(self._pending, newline)
        if not end:
            return
        start = 0
        if self._parser is None:
            found = self._find_parser(end, settled)
            if found is None:
                return
            self._parser, start = found
        content = bytes(self._pending[:end])
        del self._pending[:end]
        if end > start:
            yield self._parser.parse(np.frombuffer(content, np.uint8), start)

    def _find_parser(self, end: int, settled: bool) -> tuple[LineParser, int] | None:
        from kdgat.canbus.readers.text import NUM_SNIFFED_LINES, SNIFFED_BYTES, LineParser, find_start

        enough = (
            settled
            or self._pending.count(b"\n") >= NUM_SNIFFED_LINES
            or len(self._pending) >= SNIFFED_BYTES
            or time.monotonic() - self._begun_at >= _SETTLE_S
        )
        if not enough and not self._pending.lstrip().startswith(b"("):  # candump needs one line
            return None
        head = bytes(self._pending[: min(end, SNIFFED_BYTES)])
        layout, start = find_start(self._path, head, is_whole=True, options=self._options)
        return LineParser(layout), start

    def _all_lines(self) -> Iterator[Rows]:
        """Take also the last line where its end is missing, as a finished recording is read."""
        yield from self._whole_lines(settled=True)
        if not self._pending:
            return
        if self._parser is None:
            found = self._find_parser(len(self._pending), settled=True)
            assert found is not None
            self._parser, _ = found
        content, self._pending = bytes(self._pending), bytearray()
        yield self._parser.parse(np.frombuffer(content, np.uint8))


class _PipeFollower(_Follower):
    """Read the lines that come through a pipe, until it ends."""

    def portions(self) -> Iterator[Rows]:
        """Yield the lines that came, as soon as they are whole."""

        def is_over() -> bool:
            return self._stop.is_set() or self._closed.is_set()

        try:
            for block in text_blocks(self._path, is_over):
                self._pending += block or b""
                yield from self._whole_lines()
        except (OSError, EOFError) as error:
            if not is_over():
                del self._pending[self._pending.rfind(b"\n") + 1 :]
                yield from self._whole_lines(settled=True)
                if self._parser is None:
                    raise RecordingError(self._path, f"brings what is damaged in its first lines ({error})") from error
                yield self._parser.damage()
                return
        yield from self._whole_lines(settled=True) if is_over() else self._all_lines()
