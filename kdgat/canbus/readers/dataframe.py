"""Columns of a Parquet recording by a library with the interface of pandas: cudf on a GPU.

Only what both have, under the same names, is used, so that pandas shows on the CPU what cudf is asked to do. A row
that is not plainly good is left to the reader of the CPU, which alone decides why a row is bad.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.messages import MAX_PAYLOAD_BYTES

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
