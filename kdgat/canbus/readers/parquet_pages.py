"""A look at the headers of a Parquet file's pages before polars reads it.

Where a damaged header states that a page holds less than nothing, polars asks for exabytes, and the process ends
without an error that could be caught. The headers are Thrift, compact protocol; their fields are in `parquet.thrift` of
apache/parquet-format.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, Final

from kdgat.base import UserError

MAGIC: Final = b"PAR1"
MAX_PAGE_BYTES: Final = 1 << 31
VALUE_BYTES: Final = 8  # that a value takes at least, once it is read: a page of five bytes may hold a billion
_MAX_DEPTH: Final = 16
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


def check_pages(path: Path) -> int:
    """Walk over the headers of all pages; UserError names the first that cannot be right.

    Return how many bytes come out of them at least, as they say.
    """
    num_bytes = 0
    if path.stat().st_size == 0:  # of which mmap makes nothing
        raise UserError("it is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if len(data) < 12 or data[-4:] != MAGIC:
            raise UserError("it does not end as a Parquet file does")
        begin = len(data) - 8 - struct.unpack_from("<I", data, len(data) - 8)[0]
        try:
            footer, _ = _struct(data, _within(begin, data))
            for group in footer.get(4, ()):
                for chunk in group.get(1, ()):
                    num_bytes += _check_column(data, chunk.get(3, {}))
        except (AttributeError, TypeError) as error:
            raise UserError("a header holds values of other kinds than it should") from error
    return num_bytes


def _check_column(data: Any, about: dict[int, Any]) -> int:
    """Check the pages of one column of a row group, from its dictionary or first page on."""
    place = about.get(11) or about.get(9, -1)
    end, most = place + about.get(7, -1), about.get(5, -1)
    if not 0 < place <= end <= len(data) or most < 0:
        raise UserError(f"a column lies at byte {place} to {end} of {len(data)} and holds {most} values")
    num_bytes = VALUE_BYTES * most
    while place < end:
        header, body = _struct(data, place)
        size, unpacked = header.get(3, -1), header.get(2, -1)
        counts = [header[kind].get(1, -1) for kind in (5, 7, 8) if kind in header]
        is_right = 0 <= size <= end - body and 0 <= unpacked < MAX_PAGE_BYTES
        if not is_right or any(not 0 <= count <= max(most, size, unpacked) for count in counts):
            raise UserError(f"the page at byte {place} says that it has {size} bytes and {counts} values")
        num_bytes += unpacked
        place = body + size
    return num_bytes


def _within(place: int, data: Any) -> int:
    if not 0 <= place < len(data):
        raise UserError(f"byte {place} lies outside of the file")
    return place


def _struct(data: Any, place: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Read a structure: its fields by number, and where it ends."""
    found: dict[int, Any] = {}
    number = 0
    while True:
        head = data[_within(place, data)]
        place += 1
        kind, step = head & 15, head >> 4
        if kind == _STOP:
            return found, place
        if step:
            number += step
        else:
            number, place = _integer(data, place)
        if kind in (_TRUE, _FALSE):
            found[number] = kind == _TRUE
        else:
            found[number], place = _value(data, place, kind, depth)


def _value(data: Any, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise UserError("its structures or lists are too deep")
    if kind in (_I16, _I32, _I64):
        return _integer(data, place)
    if kind == _STRUCT:
        return _struct(data, place, depth + 1)
    if kind in (_BYTE, _TRUE, _FALSE):
        return data[_within(place, data)], place + 1
    if kind == _DOUBLE:
        return None, _within(place + 7, data) + 1
    if kind == _BINARY:
        size, place = _natural(data, place)
        return None, _within(place + size - 1, data) + 1 if size else place
    if kind in (_LIST, _SET):
        head = data[_within(place, data)]
        count, place = head >> 4, place + 1
        if count == 15:
            count, place = _natural(data, place)
        items = []
        for _ in range(count):
            item, place = _value(data, place, head & 15, depth + 1)
            items.append(item)
        return items, place
    raise UserError(f"byte {place} begins a value of the unknown kind {kind}")


def _natural(data: Any, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[_within(place, data)]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise UserError(f"a number before byte {place} has no end")


def _integer(data: Any, place: int) -> tuple[int, int]:
    value, place = _natural(data, place)
    return (value >> 1) ^ -(value & 1), place
