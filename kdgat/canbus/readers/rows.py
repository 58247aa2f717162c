"""What every reader returns: columns with one status per row, from which the bad rows are dropped and reported.

Readers of libraries that return one frame at a time gather them in `FrameColumns`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import (
    ALL_STATED,
    CAN_FD_FRAME,
    EMPTY_LINE,
    ERROR_FRAME,
    MAX_IDENTIFIER,
    MAX_PAYLOAD_BYTES,
    OTHER_CHANNEL,
    BadRow,
    Messages,
    RecordingError,
    Stated,
)


class RowStatus(IntEnum):
    """State why a row is no message; the first fault found in a row counts."""

    GOOD = 0
    TIMESTAMP = 1
    IDENTIFIER = 2
    IDENTIFIER_RANGE = 3
    PAYLOAD_ODD = 4
    PAYLOAD_HEX = 5
    PAYLOAD_LONG = 6
    LENGTH_MISMATCH = 7
    LABEL = 8
    FIELDS = 9
    TRUNCATED = 10
    LENGTH = 12
    TRAILING = 13
    TIMESTAMP_RANGE = 14
    DAMAGED = 15
    NAME = 16
    # From here on neither message nor damage; counted by kind.
    OTHER_CHANNEL = 249
    EVENT = 250  # what a tool writes of itself, or of the state of the bus, and a packet of another protocol
    CAN_XL = 251
    CAN_FD = 252
    ERROR_FRAME = 254  # what a controller reports of the bus
    SKIPPED = 255  # a line that is blank, a comment or part of a header


NO_ROW = int(RowStatus.OTHER_CHANNEL)
"""From this status on an entry counts neither as a message nor as a bad row."""
PASSED_OVER: Final = {
    RowStatus.CAN_FD: CAN_FD_FRAME,
    RowStatus.CAN_XL: "CAN XL frame",
    RowStatus.ERROR_FRAME: ERROR_FRAME,
    RowStatus.EVENT: "event of the tool",
    RowStatus.OTHER_CHANNEL: OTHER_CHANNEL,
    RowStatus.SKIPPED: EMPTY_LINE,
}
"""What an entry is called that is no message and no damage."""
MAX_CHANNELS = 255
"""Names of channels that are distinguished in one file."""
NO_CHANNEL = 255
"""Stands in `Rows.channel` where a row is damaged before its channel."""


LATEST_TIMESTAMP_S = 1e11
"""Year 5138: a larger number counts no seconds, and would turn every interval into nonsense."""

REASONS = {
    RowStatus.TIMESTAMP: "timestamp is no finite number",
    RowStatus.IDENTIFIER: "id is no hexadecimal number",
    RowStatus.IDENTIFIER_RANGE: "id is beyond 29 bits",
    RowStatus.PAYLOAD_ODD: "payload has an odd number of hex digits",
    RowStatus.PAYLOAD_HEX: "payload is no hexadecimal text",
    RowStatus.PAYLOAD_LONG: "payload is longer than 8 bytes",
    RowStatus.LENGTH_MISMATCH: "data length code and payload bytes differ",
    RowStatus.LABEL: "label is none of 0, 1, R, T, nor a word such as Normal or Attack",
    RowStatus.FIELDS: "too few fields",
    RowStatus.TRUNCATED: "last line is cut off",
    RowStatus.LENGTH: "data length code is no number from 0 to 8",
    RowStatus.TRAILING: "too many fields",
    RowStatus.DAMAGED: "the file is cut off or damaged from here on",
    RowStatus.NAME: "id is a name and its number is not said; export the log with ids instead of symbolic names",
    RowStatus.TIMESTAMP_RANGE: "timestamp is beyond 1e11 seconds; is it in ms or ns (--time-unit)?",
}
_GOOD, _CAN_FD, _ERROR_FRAME = int(RowStatus.GOOD), int(RowStatus.CAN_FD), int(RowStatus.ERROR_FRAME)
_PADDING = bytes(MAX_PAYLOAD_BYTES)


@dataclass(slots=True)
class Rows:
    """Hold the R rows of a file, bad and blank ones included."""

    timestamp: NDArray[np.float64]  # [R]
    identifier: NDArray[np.uint32]  # [R]
    payload: NDArray[np.uint8]  # [R, 8]
    length: NDArray[np.uint8]  # [R]
    label: NDArray[np.uint8]  # [R]
    status: NDArray[np.uint8]  # [R] of RowStatus
    labelled: bool
    line_of: Callable[[NDArray[np.int64]], NDArray[np.int64]]  # row indices -> line numbers, from 1
    channel: NDArray[np.uint8] | None = None  # [R] index into channels; None where the format names none
    channels: tuple[str, ...] = ()
    num_header_lines: int = 0  # before the first row
    stated: Stated = ALL_STATED
    unknown_labels: Counter[str] = field(default_factory=Counter)  # words of rows that are bad for them


def judge_timestamps(rows: Rows) -> None:
    """Mark the good rows whose timestamp counts no seconds."""
    earliest, latest = rows.timestamp.min(initial=0.0), rows.timestamp.max(initial=0.0)  # NaN if there is one
    if not (earliest >= -LATEST_TIMESTAMP_S and latest <= LATEST_TIMESTAMP_S):
        beyond = ~(np.abs(rows.timestamp) <= LATEST_TIMESTAMP_S)
        rows.status[beyond & (rows.status == RowStatus.GOOD)] = RowStatus.TIMESTAMP_RANGE


def take_good_rows(rows: Rows, name: str, scenario: str, max_listed_bad_rows: int) -> Messages:
    """Take the good rows as messages, and count the bad ones, listing the first."""
    status = rows.status
    counts = np.bincount(status, minlength=int(RowStatus.SKIPPED) + 1)
    counts[RowStatus.SKIPPED] += rows.num_header_lines
    num_bad = int(counts[RowStatus.GOOD + 1 : NO_ROW].sum())
    bad = (status != RowStatus.GOOD) & (status < NO_ROW)
    shown = np.flatnonzero(bad)[:max_listed_bad_rows]
    columns = (rows.timestamp, rows.identifier, rows.payload, rows.length, rows.label)
    if len(status) > counts[RowStatus.GOOD]:
        good = status == RowStatus.GOOD
        columns = tuple(column[good] for column in columns)
    timestamp, identifier, payload, length, label = columns
    return Messages(
        timestamp=timestamp,
        identifier=identifier,
        payload=payload,
        length=length,
        label=label,
        name=name,
        scenario=scenario,
        labelled=rows.labelled,
        bad_rows=[
            BadRow(int(line), REASONS[RowStatus(status)])
            for line, status in zip(rows.line_of(shown), status[shown], strict=True)
        ],
        num_bad_rows=num_bad,
        stated=rows.stated,
        passed_over=Counter({name: int(counts[kind]) for kind, name in PASSED_OVER.items() if counts[kind]}),
    )


def select_channel(rows: Rows, path: Path, channel: str | None) -> None:
    """Leave the rows of one channel, and those damaged before it; raise RecordingError unless it is clear which."""
    if channel is None:
        if len(rows.channels) > 1 and len(counts := count_channels(rows)) > 1:
            raise several_channels(path, counts)
        return
    counts = count_channels(rows)
    mark_other_channels(rows, path, channel)
    if channel not in counts:
        raise unknown_channel(path, channel, counts)


def mark_other_channels(rows: Rows, path: Path, channel: str) -> None:
    """Mark the rows of all channels but one as none; raise RecordingError for a file that names no channels."""
    if rows.channel is None:
        if (rows.status == RowStatus.GOOD).any():
            raise RecordingError(path, f"channel={channel!r}: the file names no channels; leave it out")
        return
    index = rows.channels.index(channel) if channel in rows.channels else NO_CHANNEL
    rows.status[(rows.channel != index) & (rows.channel != NO_CHANNEL)] = RowStatus.OTHER_CHANNEL


def count_channels(rows: Rows) -> dict[str, int]:
    """Count the good rows of each channel that has any, the channels in the order of the file."""
    if rows.channel is None:
        return {}
    counts = np.bincount(rows.channel[rows.status == RowStatus.GOOD], minlength=len(rows.channels))
    return {name: int(count) for name, count in zip(rows.channels, counts, strict=False) if count}


def several_channels(path: Path, counts: dict[str, int]) -> RecordingError:
    """Return the error that lists the channels, of which one must be chosen."""
    chosen = max(counts, key=lambda name: counts[name])
    return RecordingError(
        path,
        f"holds {len(counts)} channels: {list_channels(counts)}; choose one, for instance --channel {chosen}",
    )


def unknown_channel(path: Path, channel: str, counts: dict[str, int]) -> RecordingError:
    """Return the error that lists the channels there are instead of the one that was asked for."""
    return RecordingError(path, f"channel={channel!r}: holds no message of it; there are {list_channels(counts)}")


def list_channels(counts: dict[str, int]) -> str:
    """List channels with their number of messages."""
    return ", ".join(f"{name} ({count} messages)" for name, count in counts.items()) or "none"


class FrameColumns:
    """Gather frames in the order of a file and hand them on in portions; rows are counted over all of them, from 1."""

    def __init__(self) -> None:
        """Begin with no frame."""
        self._num_taken = 0
        self._index_of: dict[str, int] = {}
        self._clear()

    def _clear(self) -> None:
        self._timestamp = array("d")
        self._identifier = array("L")
        self._payload = bytearray()
        self._length = bytearray()
        self._channel = bytearray()
        self._status = bytearray()

    def __len__(self) -> int:
        return len(self._timestamp)

    def append(
        self, timestamp: float, identifier: int, data: bytes, channel: str | None = None, status: int = _GOOD
    ) -> None:
        """Add one frame; data beyond 8 bytes is not kept."""
        if identifier > MAX_IDENTIFIER and status == _GOOD:
            status = int(RowStatus.IDENTIFIER_RANGE)
        length = min(len(data), MAX_PAYLOAD_BYTES)
        self._timestamp.append(timestamp)
        self._identifier.append(identifier & MAX_IDENTIFIER)
        self._payload += (data + _PADDING)[:MAX_PAYLOAD_BYTES]
        self._length.append(length)
        self._channel.append(NO_CHANNEL if channel is None else self._index(channel))
        self._status.append(status)

    def append_frame(
        self, timestamp: float, identifier: int, data: bytes, channel: str | None, is_fd: bool, is_error: bool
    ) -> None:
        """Add one frame of which is known whether it is one of CAN FD or of an error; a remote one has no data."""
        status = _ERROR_FRAME if is_error else _CAN_FD if is_fd else _GOOD
        self.append(timestamp, identifier, data, channel, status)

    def append_damage(self) -> None:
        """Add a bad row for a file that ends here before its end."""
        self.append(0.0, 0, b"", None, int(RowStatus.DAMAGED))

    def _index(self, channel: str) -> int:
        index = self._index_of.get(channel)
        if index is None:
            index = min(len(self._index_of), MAX_CHANNELS - 1)
            self._index_of[channel] = index
        return index

    def take(self) -> Rows:
        """Return the frames that were added since the last call."""
        first = self._num_taken + 1
        self._num_taken += len(self)
        rows = Rows(
            timestamp=np.array(self._timestamp, dtype=np.float64),
            identifier=np.array(self._identifier, dtype=np.uint32),
            payload=np.array(self._payload, dtype=np.uint8).reshape(-1, MAX_PAYLOAD_BYTES),
            length=np.array(self._length, dtype=np.uint8),
            label=np.zeros(len(self), dtype=np.uint8),
            status=np.array(self._status, dtype=np.uint8),
            labelled=False,
            line_of=lambda rows: rows + first,
            channel=np.array(self._channel, dtype=np.uint8) if self._index_of else None,
            channels=tuple(self._index_of)[:MAX_CHANNELS],
        )
        self._clear()
        return rows


def join_rows(portions: Sequence[Rows]) -> Rows:
    """Join portions that follow one another in a file; the channels of the last one hold for all."""
    if len(portions) == 1:
        return portions[0]
    channels = portions[-1].channels
    starts = np.cumsum([0, *(len(rows.status) for rows in portions)])

    def line_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        lines = np.empty_like(rows)
        portion = np.searchsorted(starts, rows, side="right") - 1
        for index in np.unique(portion):
            chosen = portion == index
            lines[chosen] = portions[index].line_of(rows[chosen] - starts[index])
        return lines

    def channel_of(rows: Rows) -> NDArray[np.uint8]:
        return np.full(len(rows.status), NO_CHANNEL, np.uint8) if rows.channel is None else rows.channel

    return Rows(
        timestamp=np.concatenate([rows.timestamp for rows in portions]),
        identifier=np.concatenate([rows.identifier for rows in portions]),
        payload=np.concatenate([rows.payload for rows in portions]),
        length=np.concatenate([rows.length for rows in portions]),
        label=np.concatenate([rows.label for rows in portions]),
        status=np.concatenate([rows.status for rows in portions]),
        labelled=portions[0].labelled,
        line_of=line_of,
        channel=np.concatenate([channel_of(rows) for rows in portions]) if channels else None,
        channels=channels,
        num_header_lines=portions[0].num_header_lines,
        stated=portions[0].stated,
        unknown_labels=sum((rows.unknown_labels for rows in portions), Counter()),
    )


def damaged_row(line: int, channels: tuple[str, ...], status: RowStatus, stated: Stated) -> Rows:
    """Return a bad row with the reason why the file ends at a line."""
    columns = FrameColumns()
    columns.append(0.0, 0, b"", None, status)
    rows = columns.take()
    rows.channels, rows.stated = channels, stated
    rows.line_of = lambda rows: rows + line
    return rows
