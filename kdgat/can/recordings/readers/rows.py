"""What every reader hands on: columns with one status per row, from which the bad rows are dropped and reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.can.recordings.messages import BadRow, Messages, ReadLimits, RecordingError


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
    CAN_FD = 11
    LENGTH = 12
    TRAILING = 13
    TIMESTAMP_RANGE = 14
    SKIPPED = 255  # a blank line: no row at all


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
    RowStatus.LABEL: "label is none of 0, 1, R, T",
    RowStatus.FIELDS: "too few fields",
    RowStatus.TRUNCATED: "last line is cut off",
    RowStatus.CAN_FD: "CAN FD frame",
    RowStatus.LENGTH: "data length code is no number from 0 to 8",
    RowStatus.TRAILING: "too many fields",
    RowStatus.TIMESTAMP_RANGE: "timestamp is beyond 1e11 seconds; is it in milliseconds or nanoseconds?",
}


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


def keep_good_rows(rows: Rows, path: Path, name: str, scenario: str, limits: ReadLimits) -> Messages:
    """Drop and report the bad rows; raise RecordingError when none is good or too many are bad."""
    num_rows = int(np.count_nonzero(rows.status != RowStatus.SKIPPED))
    if num_rows == 0:
        raise RecordingError(path, "holds no message; remove the file or export the recording again")
    beyond = np.abs(rows.timestamp) > LATEST_TIMESTAMP_S
    if beyond.any():
        rows.status[beyond & (rows.status == RowStatus.GOOD)] = RowStatus.TIMESTAMP_RANGE
    bad = np.flatnonzero((rows.status != RowStatus.GOOD) & (rows.status != RowStatus.SKIPPED))
    shown = bad[: limits.max_listed_bad_rows]
    bad_rows = [
        BadRow(int(line), REASONS[RowStatus(status)])
        for line, status in zip(rows.line_of(shown), rows.status[shown], strict=True)
    ]
    if len(bad) == num_rows:
        raise RecordingError(
            path,
            f"none of its {num_rows} rows is a CAN message (line {bad_rows[0].line}: {bad_rows[0].reason}); "
            "check that its format is one that `kdgat data import --help` lists",
        )
    if len(bad) > limits.max_bad_fraction * num_rows:
        examples = "; ".join(f"line {row.line}: {row.reason}" for row in bad_rows[:3])
        raise RecordingError(
            path,
            f"{len(bad)} of {num_rows} rows are bad ({len(bad) / num_rows:.2%}, the limit is "
            f"{limits.max_bad_fraction:.2%}): {examples}; repair the file or raise max_bad_fraction",
        )
    columns = (rows.timestamp, rows.identifier, rows.payload, rows.length, rows.label)
    if len(rows.status) > num_rows - len(bad):
        good = rows.status == RowStatus.GOOD
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
        bad_rows=bad_rows,
        num_bad_rows=len(bad),
    )
