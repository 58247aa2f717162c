"""Recordings as Parquet: timestamp, id, data_field, label, and any text about their source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from kdgat.can.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES, Messages, RecordingError
from kdgat.can.readers.rows import Rows, Verdict

COLUMN_NAMES = {
    "timestamp": ("timestamp", "time"),
    "id": ("id", "arbitration_id", "can_id"),
    "data_field": ("data_field", "data", "payload"),
    "label": ("label", "attack"),
}
"""Column -> accepted names, compared without case."""
IGNORED_NAMES = frozenset({"source_file", "dlc", "length", "attack_type"})


def read_parquet(path: Path) -> Rows:
    """Read all rows with their verdicts; a null payload is an empty one. Raise RecordingError for other columns."""
    try:
        schema = pl.read_parquet_schema(path)
        columns = _columns(path, list(schema))
        frame = pl.read_parquet(path, columns=list(columns.values())).rename({v: k for k, v in columns.items()})
    except (pl.exceptions.PolarsError, OSError) as error:
        raise RecordingError(path, f"is no readable Parquet file ({error}); export it again") from error
    verdict = np.zeros(frame.height, dtype=np.uint8)
    label = np.zeros(frame.height, dtype=np.uint8)
    # Checked from the last field to the first, so that the first faulty field of a row is the one reported.
    if "label" in columns:
        label = _label(path, frame["label"], verdict)
    payload, length = _payload(path, frame["data_field"], verdict)
    identifier = _identifier(path, frame["id"], verdict)
    timestamp = _timestamp(path, frame["timestamp"], verdict)
    return Rows(timestamp, identifier, payload, length, label, verdict, "label" in columns, lambda rows: rows + 1)


def write_parquet(path: Path, messages: Messages, source: str) -> None:
    """Write the five columns of the dataset layout; payloads as upper-case hex text."""
    words = np.ascontiguousarray(messages.payload).view("<u8").ravel()
    length = pl.Series(2 * messages.length.astype(np.uint32))
    frame = pl.DataFrame({"timestamp": messages.timestamp, "id": messages.identifier}).with_columns(
        _hex_text(words).str.head(length).alias("data_field"),
        pl.Series("label", messages.label),
        pl.lit(source).alias("source_file"),
    )
    if not messages.labelled:
        frame = frame.drop("label")
    frame.write_parquet(path, compression="zstd")


def _columns(path: Path, names: list[str]) -> dict[str, str]:
    lower = {name.lower(): name for name in names}
    columns = {
        column: next(lower[alias] for alias in aliases if alias in lower)
        for column, aliases in COLUMN_NAMES.items()
        if any(alias in lower for alias in aliases)
    }
    unknown = set(names) - set(columns.values()) - {lower[name] for name in IGNORED_NAMES if name in lower}
    missing = [column for column in COLUMN_NAMES if column not in columns]
    # A label under an unknown name must not pass for a recording without labels.
    if set(missing) - {"label"} or (missing and unknown):
        raise RecordingError(
            path,
            f"has the columns {', '.join(names)}, but no {' and no '.join(missing)}; rename its columns to "
            "timestamp (seconds), id, data_field (hex text) and label (0 or 1; leave it and all other columns "
            "out for a recording without labels)",
        )
    return columns


def _timestamp(path: Path, column: pl.Series, verdict: NDArray[np.uint8]) -> NDArray[np.float64]:
    if not column.dtype.is_numeric():
        raise RecordingError(path, f"column timestamp holds {column.dtype}; store seconds as float64")
    timestamp = column.cast(pl.Float64).fill_null(float("nan")).to_numpy(writable=True)
    verdict[~np.isfinite(timestamp)] = Verdict.TIMESTAMP
    return timestamp


def _identifier(path: Path, column: pl.Series, verdict: NDArray[np.uint8]) -> NDArray[np.uint32]:
    if column.dtype == pl.String:
        column = column.str.strip_prefix("0x").str.to_integer(base=16, strict=False, dtype=pl.Int64)
    elif not column.dtype.is_integer():
        raise RecordingError(path, f"column id holds {column.dtype}; store the arbitration id as an integer")
    identifier = column.cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
    verdict[identifier > MAX_IDENTIFIER] = Verdict.IDENTIFIER_RANGE
    verdict[identifier < 0] = Verdict.IDENTIFIER
    return identifier.astype(np.uint32)


def _payload(path: Path, column: pl.Series, verdict: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if column.dtype != pl.String:
        raise RecordingError(path, f"column data_field holds {column.dtype}; store the payload as hex text")
    column = column.fill_null("")
    num_digits = column.str.len_bytes().to_numpy()
    # Fixed width first: then one pass decodes all rows, and eight bytes are one integer in memory order.
    words = (
        column.str.head(2 * MAX_PAYLOAD_BYTES)
        if num_digits.size and num_digits.max() > 2 * MAX_PAYLOAD_BYTES
        else column
    )
    words = words.str.pad_end(2 * MAX_PAYLOAD_BYTES, "0").str.decode("hex", strict=False)
    integers = words.bin.reinterpret(dtype=pl.UInt64, endianness="little")
    if integers.null_count():
        verdict[integers.is_null().to_numpy()] = Verdict.PAYLOAD_HEX
        integers = integers.fill_null(0)
    verdict[num_digits % 2 == 1] = Verdict.PAYLOAD_ODD
    verdict[num_digits > 2 * MAX_PAYLOAD_BYTES] = Verdict.PAYLOAD_LONG
    payload = np.array(integers.to_numpy(), dtype="<u8").view(np.uint8).reshape(-1, MAX_PAYLOAD_BYTES)
    return payload, (num_digits // 2).astype(np.uint8)


def _label(path: Path, column: pl.Series, verdict: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if column.dtype == pl.String:
        column = column.replace_strict({"0": 0, "1": 1, "R": 0, "T": 1}, default=None, return_dtype=pl.Int64)
    elif not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise RecordingError(path, f"column label holds {column.dtype}; store 0 for benign and 1 for attack")
    label = column.cast(pl.Float64).fill_null(-1.0).to_numpy()
    verdict[(label != 0.0) & (label != 1.0)] = Verdict.LABEL
    return (label == 1.0).astype(np.uint8)


def _hex_text(words: NDArray[np.uint64]) -> pl.Series:
    digits = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
    data = words.view(np.uint8)
    text = np.empty((len(data), 2), dtype=np.uint8)
    text[:, 0] = digits[data >> 4]
    text[:, 1] = digits[data & 15]
    return pl.Series(text.reshape(-1).view("S16"), dtype=pl.Binary).cast(pl.String)
