"""Recordings as Parquet: timestamp, id, data_field, label, and any text about their source."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import cache
from itertools import chain, product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from kdgat.base import UserError
from kdgat.canbus.messages import MAX_IDENTIFIER, MAX_PAYLOAD_BYTES, AttackCampaign, Messages, RecordingError, Stated
from kdgat.canbus.readers.labels import refuse_unknown_words, value_of
from kdgat.canbus.readers.limits import most_unpacked, too_large
from kdgat.canbus.readers.parquet_pages import check_pages
from kdgat.canbus.readers.rows import Rows, RowStatus

logger = logging.getLogger(__name__)

COLUMN_NAMES = {
    "timestamp": ("timestamp", "time"),
    "id": ("id", "arbitration_id", "can_id"),
    "data_field": ("data_field", "data", "payload"),
    "label": ("label", "labels", "attack", "is_attack", "flag", "class"),
}
"""Column -> accepted names, compared without case."""
CAMPAIGNS_KEY = "kdgat.campaigns"
"""Metadata of the file: JSON of its campaigns."""
UNIT_KEY = "kdgat.time_unit"
"""Metadata of the file where a person has said the unit of its times: what it is now."""
STORE_NUMBERS = "store 0 for benign and 1 for attack"
_ROWS_IN_GROUP = 1 << 18
IGNORED_NAMES = frozenset({"source_file", "dlc", "length", "attack_type"})

UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What polars raises for a damaged file; a panic of its compiled part is no `Exception`."""


class DataframeBackend(Protocol):
    """Choose a library with the interface of pandas, such as cuDF, that reads a Parquet file in place of polars."""

    def dataframes(self, num_bytes: int, /) -> ModuleType | None:
        """Return the library for a file of so many bytes, None for polars."""

    def give_up(self, name: str, what: str, error: Exception, /) -> None:
        """Return where polars shall read the file on which the library failed, else raise."""


def read_parquet(path: Path, backend: DataframeBackend | None = None) -> Rows:
    """Read all rows with the status of each; a null payload is an empty one. Raise RecordingError for other columns.

    Which library reads them changes nothing of what is read.
    """
    _refuse_damaged_pages(path)
    if backend is not None and (library := backend.dataframes(path.stat().st_size)) is not None:
        rows = _read_by(library, path, backend)
        if rows is not None:
            return rows
    try:
        columns = _columns(path, list(pl.read_parquet_schema(path)))
        frame = pl.read_parquet(path, columns=list(columns.values())).rename({v: k for k, v in columns.items()})
    except UNREADABLE as error:
        raise RecordingError(path, f"is no readable Parquet file ({error}); export it again") from error
    status = np.zeros(frame.height, dtype=np.uint8)
    label = np.zeros(frame.height, dtype=np.uint8)
    # Checked from the last field to the first, so that the first faulty field of a row is the one reported.
    if "label" in columns:
        label = _label(path, frame["label"], status)
    payload, length = _payload(path, frame["data_field"], status)
    identifier = _identifier(path, frame["id"], status)
    timestamp = _timestamp(path, frame["timestamp"], status)
    labelled = "label" in columns
    return Rows(
        timestamp, identifier, payload, length, label, status, labelled, lambda rows: rows + 1, stated=_stated(path)
    )


def _refuse_damaged_pages(path: Path) -> None:
    try:
        num_bytes = check_pages(path)
    except (UserError, OSError) as error:
        raise RecordingError(path, f"is no readable Parquet file ({error}); export it again") from error
    if num_bytes > most_unpacked(path.stat().st_size):
        raise too_large(path)


def has_label_column(path: Path) -> bool:
    """Return whether a file has labels; RecordingError if it cannot be read, or has other columns."""
    try:
        return "label" in _columns(path, list(pl.read_parquet_schema(path)))
    except UNREADABLE as error:
        raise RecordingError(path, f"is no readable Parquet file ({error}); export it again") from error


def check_columns(path: Path) -> int:
    """Return how many rows a file has; RecordingError if it cannot be read, or has other columns."""
    _refuse_damaged_pages(path)
    try:
        _columns(path, list(pl.read_parquet_schema(path)))
        return int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except UNREADABLE as error:
        raise RecordingError(path, f"is no readable Parquet file ({error}); export it again") from error


def _read_by(library: ModuleType, path: Path, backend: DataframeBackend) -> Rows | None:
    """Read all rows by another library; None for columns that are left to this reader, the wrong ones included."""
    try:
        schema = pl.read_parquet_schema(path)
    except UNREADABLE:
        return None
    columns = _columns(path, list(schema))
    types = {column: schema[name] for column, name in columns.items()}
    if not (
        (types["timestamp"].is_float() or types["timestamp"].is_integer())
        and types["id"].is_integer()
        and types["id"] not in (pl.UInt64, pl.Int128)
        and types["data_field"] == pl.String
        and ("label" not in types or types["label"].is_integer() or types["label"].is_float())
    ):
        logger.info("%s: its columns are of types that the CPU reads: %s", path, types)
        return None
    try:
        read = read_columns(library, path, columns)
    except Exception as error:  # whatever a device can run into: memory, driver, a feature of the file
        backend.give_up(library.__name__, str(path), error)
        return None
    status = np.zeros(len(read.timestamp), dtype=np.uint8)
    label = np.zeros(len(status), dtype=np.uint8)
    if read.label is not None:
        label = _judge_label(path, read.label, status)
    unclear = np.flatnonzero(~read.is_clear)
    if unclear.size:
        own = np.zeros(len(unclear), dtype=np.uint8)
        texts = pl.read_parquet(path, columns=[columns["data_field"]])[columns["data_field"]].gather(unclear)
        read.payload[unclear], read.length[unclear] = _payload(path, texts, own)
        status[unclear] = np.where(own == RowStatus.GOOD, status[unclear], own)
    identifier = _judge_identifier(read.identifier, status)
    timestamp = _judge_timestamp(read.timestamp, status)
    labelled = read.label is not None
    payload, length = read.payload, read.length
    return Rows(
        timestamp, identifier, payload, length, label, status, labelled, lambda rows: rows + 1, stated=_stated(path)
    )


def write_parquet(path: Path, messages: Messages | Iterable[Messages]) -> None:
    """Write the five columns of the dataset layout; payloads as upper-case hex text.

    Of chunks, which follow one another, a few are in memory at once. What making them raises is raised.
    """
    if isinstance(messages, Messages):
        _frame(messages).write_parquet(path, compression="zstd", metadata=_metadata(messages))
        return
    chunks = iter(messages)
    first = next(chunks)
    raised: list[BaseException] = []

    def frames(*_: Any) -> Iterator[pl.DataFrame]:
        try:
            yield from map(_frame, chain([first], chunks))
        except BaseException as error:  # polars would make another one of it
            raised.append(error)

    lazy = register_io_source(frames, schema=_frame(first).schema)
    lazy.sink_parquet(path, compression="zstd", row_group_size=_ROWS_IN_GROUP, metadata=_metadata(first))
    if raised:
        raise raised[0]


def _metadata(messages: Messages) -> dict[str, str] | None:
    metadata = {}
    if messages.campaigns:
        metadata[CAMPAIGNS_KEY] = json.dumps([asdict(campaign) for campaign in messages.campaigns])
    if messages.stated is not None and messages.stated.said:
        metadata[UNIT_KEY] = "s"
    return metadata or None


def _frame(messages: Messages) -> pl.DataFrame:
    words = np.ascontiguousarray(messages.payload).view("<u8").ravel()
    length = pl.Series(2 * messages.length.astype(np.uint32))
    source = f"{messages.scenario}/{messages.name}" if messages.scenario else messages.name
    frame = pl.DataFrame({"timestamp": messages.timestamp, "id": messages.identifier}).with_columns(
        _hex_text(words).str.head(length).alias("data_field"),
        pl.Series("label", messages.label),
        pl.lit(source).alias("source_file"),
    )
    return frame if messages.labelled else frame.drop("label")


def read_campaigns(path: Path) -> tuple[AttackCampaign, ...]:
    """Read when an attacker was active, where the file states it; RecordingError if that is damaged."""
    text = _read_metadata(path).get(CAMPAIGNS_KEY)
    if text is None:
        return ()
    try:
        return tuple(
            AttackCampaign(
                str(row["kind"]), float(row["begin_s"]), float(row["end_s"]), tuple(int(i) for i in row["identifiers"])
            )
            for row in json.loads(text)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise RecordingError(path, f"its metadata {CAMPAIGNS_KEY} is damaged ({error!r}); export it again") from error


def _stated(path: Path) -> Stated:
    return Stated(unit=False, base=True, said=UNIT_KEY in _read_metadata(path))


def _read_metadata(path: Path) -> dict[str, str]:
    try:
        return pl.read_parquet_metadata(path)
    except UNREADABLE as error:
        raise RecordingError(path, f"is no readable Parquet file ({error}); export it again") from error


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


def _timestamp(path: Path, column: pl.Series, status: NDArray[np.uint8]) -> NDArray[np.float64]:
    if not column.dtype.is_numeric():
        raise RecordingError(path, f"column timestamp holds {column.dtype}; store seconds as float64")
    return _judge_timestamp(column.cast(pl.Float64).fill_null(float("nan")).to_numpy(writable=True), status)


def _judge_timestamp(timestamp: NDArray[np.float64], status: NDArray[np.uint8]) -> NDArray[np.float64]:
    status[~np.isfinite(timestamp)] = RowStatus.TIMESTAMP
    return timestamp


def _identifier(path: Path, column: pl.Series, status: NDArray[np.uint8]) -> NDArray[np.uint32]:
    if column.dtype == pl.String:
        column = column.str.strip_prefix("0x").str.to_integer(base=16, strict=False, dtype=pl.Int64)
    elif not column.dtype.is_integer():
        raise RecordingError(path, f"column id holds {column.dtype}; store the arbitration id as an integer")
    return _judge_identifier(column.cast(pl.Int64, strict=False).fill_null(-1).to_numpy(), status)


def _judge_identifier(identifier: NDArray[np.int64], status: NDArray[np.uint8]) -> NDArray[np.uint32]:
    status[identifier > MAX_IDENTIFIER] = RowStatus.IDENTIFIER_RANGE
    status[identifier < 0] = RowStatus.IDENTIFIER
    return identifier.astype(np.uint32)


def _payload(path: Path, column: pl.Series, status: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if column.dtype != pl.String:
        raise RecordingError(path, f"column data_field holds {column.dtype}; store the payload as hex text")
    column = column.fill_null("").str.strip_prefix("0x")
    num_digits = column.str.len_bytes().to_numpy()
    most = 2 * MAX_PAYLOAD_BYTES
    digits = column.str.head(most) if num_digits.size and num_digits.max() > most else column
    # All digits are one number, the first byte in its highest digits: reversed, it is eight bytes in their order.
    numbers = digits.str.to_integer(base=16, strict=False, dtype=pl.UInt64)
    is_wrong = (numbers.is_null() | digits.str.starts_with("+")).to_numpy() & (num_digits > 0)
    words = np.where(is_wrong, np.uint64(0), numbers.fill_null(0).to_numpy())
    words <<= 4 * (most - np.clip(num_digits, 1, most)).astype(np.uint64)
    status[is_wrong] = RowStatus.PAYLOAD_HEX
    status[num_digits % 2 == 1] = RowStatus.PAYLOAD_ODD
    status[num_digits > most] = RowStatus.PAYLOAD_LONG
    payload = words.astype(">u8").view(np.uint8).reshape(-1, MAX_PAYLOAD_BYTES)
    return payload, (num_digits // 2).astype(np.uint8)


def _label(path: Path, column: pl.Series, status: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if column.dtype == pl.String:
        words = [word for word in column.unique().to_list() if word is not None]
        values = {word: value_of(word) for word in words}
        unknown = column.filter(column.replace_strict(values, default=0, return_dtype=pl.Int64) < 0)
        refuse_unknown_words(path, Counter(unknown.to_list()), STORE_NUMBERS)
        column = column.replace_strict(values, default=None, return_dtype=pl.Int64)
    elif not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise RecordingError(path, f"column label holds {column.dtype}; {STORE_NUMBERS}")
    return _judge_label(path, column.cast(pl.Float64).fill_null(-1.0).to_numpy(), status)


def _judge_label(path: Path, label: NDArray[np.float64], status: NDArray[np.uint8]) -> NDArray[np.uint8]:
    kinds = label[(label > 1.0) & (label == np.floor(label))]
    refuse_unknown_words(path, Counter(f"{kind:.0f}" for kind in kinds), STORE_NUMBERS)
    status[(label != 0.0) & (label != 1.0)] = RowStatus.LABEL
    return (label == 1.0).astype(np.uint8)


def _hex_text(words: NDArray[np.uint64]) -> pl.Series:
    digits = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)
    data = words.view(np.uint8)
    text = np.empty((len(data), 2), dtype=np.uint8)
    text[:, 0] = digits[data >> 4]
    text[:, 1] = digits[data & 15]
    return pl.Series(text.reshape(-1).view("S16"), dtype=pl.Binary).cast(pl.String)


_DIGITS = "0123456789abcdefABCDEF"
_BYTE_OF = {first + second: int(first + second, 16) for first, second in product(_DIGITS, _DIGITS)}
_NO_BYTE = 256


class Columns(NamedTuple):
    """Hold the R rows of a file before they are judged; a missing value is nan, -1 or an unclear payload."""

    timestamp: NDArray[np.float64]  # [R]
    identifier: NDArray[np.int64]  # [R]
    payload: NDArray[np.uint8]  # [R, 8]
    length: NDArray[np.uint8]  # [R]
    is_clear: NDArray[np.bool_]  # [R] whether the payload is an even number of at most 16 hexadecimal digits
    label: NDArray[np.float64] | None  # [R]


def read_columns(library: ModuleType, path: Path, names: dict[str, str]) -> Columns:
    """Read the columns `names` (what they are -> what the file calls them) of a Parquet file.

    The types must be checked before: numbers that fit int64 for `id`, text for `data_field`. Raises what the library
    raises.
    """
    _check_decoding(library)
    frame = library.read_parquet(path, columns=list(names.values()))
    payload, length, is_clear = decode_payloads(frame[names["data_field"]])
    return Columns(
        timestamp=_floats(frame[names["timestamp"]], float("nan")),
        identifier=frame[names["id"]].fillna(-1).astype("int64").to_numpy(),
        payload=payload,
        length=length,
        is_clear=is_clear,
        label=_floats(frame[names["label"]], -1.0) if "label" in names else None,
    )


def decode_payloads(texts: Any) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.bool_]]:
    """Decode hexadecimal texts, a Series [R]: bytes [R, 8] padded with zeros, their number [R], and whether it is so.

    Rows for which the last is False hold nothing of use.
    """
    texts = texts.fillna("")
    num_digits = texts.str.len().astype("int64").to_numpy()
    padded = texts.str.ljust(2 * MAX_PAYLOAD_BYTES, "0")
    payload = np.empty((len(num_digits), MAX_PAYLOAD_BYTES), np.uint8)
    is_clear = (num_digits % 2 == 0) & (num_digits <= 2 * MAX_PAYLOAD_BYTES)
    for place in range(MAX_PAYLOAD_BYTES):
        pairs = padded.str.slice(2 * place, 2 * place + 2)
        values = pairs.map(_BYTE_OF).fillna(_NO_BYTE).astype("int64").to_numpy()
        is_clear &= values != _NO_BYTE
        payload[:, place] = values & 0xFF
    return payload, (num_digits // 2).astype(np.uint8), is_clear


@cache
def _check_decoding(library: ModuleType) -> None:
    """Raise ArithmeticError unless a library decodes known payloads as it should: asked once, before it is used."""
    texts = ["", "0aF9", "00112233445566778", "8899AABBCCDDEEFF", "zz", "é", None]
    payload, length, is_clear = decode_payloads(library.Series(texts))
    expected = [bytes.fromhex(texts[row] or "") for row in (0, 1, 3, 6)]
    found = [payload[row, : length[row]].tobytes() for row in (0, 1, 3, 6)]
    if found != expected or is_clear.tolist() != [True, True, False, True, False, False, True]:
        raise ArithmeticError("known payloads come out as others")


def _floats(column: Any, missing: float) -> NDArray[np.float64]:
    values = column.astype("float64").to_numpy(na_value=np.nan)
    return values if np.isnan(missing) else np.where(np.isnan(values), missing, values)
