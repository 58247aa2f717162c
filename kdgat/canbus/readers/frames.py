"""Frames that a library reads one by one, gathered as columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES
from kdgat.canbus.readers.rows import MAX_CHANNELS, NO_CHANNEL, Rows, RowStatus

_GOOD, _CAN_FD, _ERROR_FRAME = int(RowStatus.GOOD), int(RowStatus.CAN_FD), int(RowStatus.ERROR_FRAME)
_PADDING = bytes(MAX_PAYLOAD_BYTES)


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
        """Add a bad row that says that the file ends here before its end."""
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
    )


def damaged_row(line: int, channels: tuple[str, ...], status: RowStatus) -> Rows:
    """Return a bad row that says why the file ends at a line."""
    columns = FrameColumns()
    columns.append(0.0, 0, b"", None, status)
    rows = columns.take()
    rows.channels = channels
    rows.line_of = lambda rows: rows + line
    return rows
