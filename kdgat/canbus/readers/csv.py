"""Recordings as separated fields: what their columns hold, by a header or by their place, and their rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kdgat.base.machine_code import njit
from kdgat.canbus.messages import MAX_PAYLOAD_BYTES, ReadOptions, RecordingError
from kdgat.canbus.readers.detect import SHOWN_CHARACTERS, require_text
from kdgat.canbus.readers.numbers import (
    HEX_VALUE,
    Bytes,
    find_channel,
    read_byte,
    read_identifier,
    read_label,
    read_length,
    read_number,
    read_payload,
)
from kdgat.canbus.readers.rows import RowStatus

(
    ROLE_IGNORED,
    ROLE_TIMESTAMP,
    ROLE_IDENTIFIER,
    ROLE_PAYLOAD,
    ROLE_LABEL,
    ROLE_LENGTH,
    ROLE_CHANNEL,
    ROLE_BYTE,
    ROLE_BYTES,
) = range(9)
"""What a CSV column holds. ROLE_BYTE is one byte at a fixed column, empty or 0 behind the payload. From ROLE_BYTES on,
a line holds as many bytes as its length states and then the label, in whichever column that is."""

COLUMN_NAMES = {
    ROLE_TIMESTAMP: ("timestamp", "time", "time_stamp", "ts"),
    ROLE_IDENTIFIER: ("id", "arbitration_id", "can_id", "canid"),
    ROLE_LENGTH: ("dlc", "length", "data_length"),
    ROLE_PAYLOAD: ("data_field", "data", "payload"),
    ROLE_LABEL: ("label", "labels", "attack", "is_attack", "flag", "class"),
    ROLE_CHANNEL: ("channel", "bus", "interface"),
}
"""Role -> accepted header names, compared without case, spaces as underscores."""
_FIRST_BYTE_NAME = re.compile(r"(data|byte|d|b)_?\[?[01]\]?")
_ANY_BYTE_NAME = re.compile(r"(data|byte|d|b)_?\[?[0-8]\]?")

_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\D|\d{1,2}:\d\d:")
_MEANING = (
    "times must be seconds (or say --time-unit us, ms, ns or differences), ids and bytes hexadecimal (or say "
    "--ids decimal)"
)
PLAIN_COLUMNS = "timestamp,arbitration_id,data_field"
FORMATS_PAGE = "docs/recordings.md"
MAX_HEADER = 200  # characters of one that is shown: its names show what is missing
_NEWLINE, _SPACE, _QUOTE, _ZERO, _LOWER_X = ord("\n"), ord(" "), ord('"'), ord("0"), ord("x")

Shape = tuple[tuple[int, ...], bool]
"""Roles of the columns, and whether there is a label."""
_FIXED_BYTES = (ROLE_BYTE,) * MAX_PAYLOAD_BYTES


class Columns(NamedTuple):
    """State how the lines of a file are divided, and what their fields hold."""

    num_header_lines: int
    separator: str
    roles: tuple[int, ...]  # ROLE_*
    labelled: bool


def find_columns(path: Path, lines: Sequence[str], options: ReadOptions) -> Columns:
    """Find the columns from the first lines of a file; RecordingError for a header or columns that are not known."""
    # Where commas are decimal points, they are in every line, too.
    separator = max("\t;,", key=lambda character: sum(character in line for line in lines))
    table = [[cell.strip(' "\r\t') for cell in line.split(separator)] for line in lines if line.strip()]
    first = next(number for number, line in enumerate(lines) if line.strip())
    if _is_number(table[0][0]):
        if options.label_column is not None:
            raise _no_label_column(path, options.label_column, "it has no header; its label is the last column")
        roles, labelled = _roles_by_position(path, table)
        return Columns(0, separator, roles, labelled)
    if len(table) == 1:
        require_text(path, lines)
        raise RecordingError(path, "holds a header and no message; record or export it again")
    roles, labelled = _roles_by_name(path, table, options.label_column)
    place = roles.index(ROLE_TIMESTAMP)
    dates = [row[place] for row in table[1:] if len(row) > place and _DATE.match(row[place])]
    if 2 * len(dates) >= len(table):
        raise RecordingError(
            path, f"has dates where its times stand ({dates[0]!r}); write seconds, with their fractions"
        )
    return Columns(first + 1, separator, roles, labelled)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _roles_by_position(path: Path, table: Sequence[Sequence[str]]) -> Shape:
    """Take timestamp, id, and either hex text and label, or a length, its bytes and a flag."""
    shape = _most_common(_shape_of_row(row) for row in table)
    if shape is not None and ROLE_BYTES in shape[0]:
        # Whether payloads are padded to 8 bytes shows only where one is shorter.
        shape = _most_common(_shape_of_row(row) for row in table if _is_short(row)) or shape
    if shape is None:
        row = ",".join(table[0])
        raise RecordingError(
            path,
            f"has no header and columns that are not known (it starts with {row[:SHOWN_CHARACTERS]!r}); "
            "write timestamp,arbitration_id,data_field,attack or timestamp,id,dlc,byte,...,flag, or name the columns "
            f"in a header; {_MEANING}",
        )
    return shape


def _most_common(shapes: Iterable[Shape | None]) -> Shape | None:
    votes = Counter(shape for shape in shapes if shape is not None)
    return votes.most_common(1)[0][0] if votes else None


def _shape_of_row(row: Sequence[str]) -> Shape | None:
    if len(row) < 3 or not _is_number(row[0]):
        return None
    leading: tuple[int, ...] = (ROLE_TIMESTAMP, ROLE_IDENTIFIER)
    if _is_length(row[2]):  # hex text has an even number of digits, so this is no payload
        leading = (*leading, ROLE_LENGTH)
        cells = [cell for cell in row[3:] if cell]
        if cells and (len(cells[0]) > 2 or " " in cells[0]):
            tail = (ROLE_PAYLOAD, ROLE_LABEL)
            return (*leading, *tail[: len(row) - 3]), len(row) >= 5
        num_bytes = int(row[2])
        if len(cells) - num_bytes in (0, 1):
            return (*leading, ROLE_BYTES), len(cells) > num_bytes
        if len(cells) in (MAX_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES + 1) and _is_zero_padded(cells, num_bytes):
            labelled = len(cells) > MAX_PAYLOAD_BYTES
            return (*leading, *_FIXED_BYTES, *((ROLE_LABEL,) if labelled else ())), labelled
        return None
    if len(row) == 3:
        return (*leading, ROLE_PAYLOAD), False
    if len(row) == 4:
        return (*leading, ROLE_PAYLOAD, ROLE_LABEL), True
    return None


def _is_length(text: str) -> bool:
    return len(text) == 1 and text in "012345678"


def _is_short(row: Sequence[str]) -> bool:
    return len(row) > 3 and _is_length(row[2]) and int(row[2]) < MAX_PAYLOAD_BYTES


def _is_zero_padded(cells: Sequence[str], num_bytes: int) -> bool:
    padding = cells[num_bytes:MAX_PAYLOAD_BYTES]
    return bool(padding) and all(cell in ("0", "00") for cell in padding)


def _no_label_column(path: Path, name: str, there_is: str) -> RecordingError:
    return RecordingError(path, f"label_column={name!r}: {there_is}; give --label-column another name or leave it out")


def _plain(name: str) -> str:
    return re.sub(r"[\s\-.]+", "_", name.strip().lower())


def _roles_by_name(path: Path, table: Sequence[Sequence[str]], label_column: str | None) -> Shape:
    names = [_plain(name) for name in table[0]]
    roles = [next((role for role, known in COLUMN_NAMES.items() if name in known), ROLE_IGNORED) for name in names]
    channels = [names.index(name) for name in COLUMN_NAMES[ROLE_CHANNEL] if name in names]
    roles = [ROLE_IGNORED if k in channels[1:] else role for k, role in enumerate(roles)]
    if label_column is not None:
        if _plain(label_column) not in names:
            raise _no_label_column(path, label_column, f"its columns are {', '.join(table[0])}")
        chosen = names.index(_plain(label_column))
        roles = [ROLE_IGNORED if role == ROLE_LABEL else role for role in roles]
        roles[chosen] = ROLE_LABEL
    elif len(labels := [table[0][k] for k, role in enumerate(roles) if role == ROLE_LABEL]) > 1:
        raise RecordingError(
            path,
            f"its columns {' and '.join(labels)} may hold labels; choose one, for instance --label-column {labels[0]}",
        )
    rows = table[1:]
    wider = sum(len(row) > len(names) for row in rows) > len(rows) // 2
    bytes_from = next((k for k, name in enumerate(names) if _FIRST_BYTE_NAME.fullmatch(name)), None)
    if bytes_from is None and wider and ROLE_LENGTH in roles and ROLE_PAYLOAD in roles:
        bytes_from = roles.index(ROLE_PAYLOAD)  # one name above bytes in columns of their own
        names = [*names[:bytes_from], "data0", *names[bytes_from + 1 :]]
    if bytes_from is not None:
        return _roles_with_bytes(path, names, roles, rows, bytes_from)
    repeated = [names[k] for k, role in enumerate(roles) if role and role in roles[:k]]
    required = (ROLE_TIMESTAMP, ROLE_IDENTIFIER, ROLE_PAYLOAD)
    unknown = [name for k, name in enumerate(names) if not roles[k]]
    labelled = ROLE_LABEL in roles
    # A label under an unknown name must not pass for a recording without labels.
    if repeated or any(role not in roles for role in required) or (unknown and not labelled):
        raise _header_error(path, table[0], rows)
    return tuple(roles), labelled


def _roles_with_bytes(
    path: Path, names: Sequence[str], roles: Sequence[int], rows: Sequence[Sequence[str]], bytes_from: int
) -> Shape:
    leading = (ROLE_TIMESTAMP, ROLE_IDENTIFIER, ROLE_LENGTH)
    bytes_end = bytes_from + sum(bool(_ANY_BYTE_NAME.fullmatch(name)) for name in names[bytes_from:])
    behind = [role for role, name in zip(roles[bytes_end:], names[bytes_end:], strict=True) if name]
    others = [*roles[:bytes_from], *behind]
    labelled = ROLE_LABEL in others
    if not {ROLE_TIMESTAMP, ROLE_IDENTIFIER} <= set(others) or (ROLE_IGNORED in others and not labelled):
        raise _header_error(path, names, rows)
    short = [row for row in rows if _is_short(row)]
    num_padded = sum(len(row) >= bytes_end and _is_zero_padded(row[bytes_from:], int(row[2])) for row in short)
    is_fixed = len(behind) > 1 or ROLE_CHANNEL in behind or num_padded > len(short) // 2
    if tuple(roles[:bytes_from]) != leading or is_fixed:
        return (*roles[:bytes_from], *(ROLE_BYTE,) * (bytes_end - bytes_from), *roles[bytes_end:]), labelled
    # Whether a label follows shows in the rows: files of this kind carry headers of the wrong width.
    num_extra = [
        len([cell for cell in row[3:] if cell]) - int(row[2]) for row in rows if row[2:] and _is_length(row[2])
    ]
    return (*leading, ROLE_BYTES), sum(extra == 1 for extra in num_extra) > len(num_extra) // 2


def _header_error(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> RecordingError:
    written = ",".join(header)
    require_text(path, [",".join(row) for row in (header, *rows)])
    known = {role for role, accepted in COLUMN_NAMES.items() for name in header if name.strip().lower() in accepted}
    if ROLE_TIMESTAMP in known and not known & {ROLE_IDENTIFIER, ROLE_PAYLOAD, ROLE_LENGTH}:
        return RecordingError(
            path,
            "has times and no column of ids: a table of decoded signals holds values, and no frames; export the raw "
            "messages",
        )
    shown = repr(written) if len(written) <= MAX_HEADER else f"{written[:MAX_HEADER]!r}..."
    return RecordingError(
        path,
        f"has the header {shown}, which is not known; columns: {PLAIN_COLUMNS}, in seconds (or "
        f"say --time-unit) and hexadecimal (or say --ids decimal); labels: --label-column, {FORMATS_PAGE}",
    )


@njit(cache=True, nogil=True)
def parse_separated(
    data: Bytes,
    start: int,
    separator: int,
    roles: Any,  # [columns] ROLE_*
    labelled: bool,
    words: Any,  # of labels
    base: int,
    payload_base: int,
    names: Any,
    timestamp: Any,
    identifier: Any,
    payload: Any,
    length: Any,
    channel: Any,
    label: Any,
    status: Any,
) -> int:
    """Parse lines of separated fields; columns of the outputs are [lines], payload [lines, 8] and zero.

    Ids are numbers in `base`, bytes in `payload_base`, 10 or 16. Return the number of channel names, as `parse_candump`
    does.
    """
    end = len(data)
    num_roles = len(roles)
    variable = roles[num_roles - 1] == ROLE_BYTES
    num_required = 0
    for k in range(num_roles):
        if roles[k] != ROLE_IGNORED:
            num_required = k + 1
    i = start
    row = 0
    num_names = 0
    while i < end:
        column = 0
        name_start, name_end = 0, 0
        fault: int = RowStatus.GOOD
        stated_length = -1
        count = 0
        has_label = False
        blank = False
        while True:
            a = i
            while i < end and data[i] != separator and data[i] != _NEWLINE:
                i += 1
            b = i
            while a < b and (data[a] <= _SPACE or data[a] == _QUOTE):
                a += 1
            while b > a and (data[b - 1] <= _SPACE or data[b - 1] == _QUOTE):
                b -= 1
            last = i >= end or data[i] == _NEWLINE
            if last and column == 0 and a == b:
                blank = True
            elif fault == RowStatus.GOOD:
                if column < num_roles:
                    role = roles[column]
                elif variable:
                    role = ROLE_BYTES
                else:
                    role = -1
                if role == ROLE_TIMESTAMP:
                    timestamp[row] = read_number(data, a, b)
                    if not np.isfinite(timestamp[row]):
                        fault = RowStatus.TIMESTAMP
                elif role == ROLE_IDENTIFIER:
                    value = read_identifier(data, a, b, base)
                    if value < 0:
                        fault = RowStatus.IDENTIFIER if value == -1 else RowStatus.IDENTIFIER_RANGE
                    else:
                        identifier[row] = value
                elif role == ROLE_PAYLOAD:
                    if payload_base == 16 and b - a > 2 and data[a] == _ZERO and data[a + 1] | 32 == _LOWER_X:
                        a += 2
                    count = read_payload(data, a, b, payload[row], payload_base)
                    if count < 0:
                        fault = -count
                elif role == ROLE_CHANNEL:
                    name_start, name_end = a, b
                elif role == ROLE_LENGTH:
                    stated_length = read_length(data, a, b)
                    if stated_length < 0:
                        fault = RowStatus.LENGTH
                elif role == ROLE_LABEL:
                    value = read_label(data, a, b, words)
                    if value < 0:
                        fault = RowStatus.LABEL
                    else:
                        label[row] = value
                        has_label = True
                elif role == ROLE_BYTE:
                    value = read_byte(data, a, b, payload_base)
                    if a == b:
                        pass  # padding behind the last byte
                    elif value < 0:
                        fault = RowStatus.PAYLOAD_HEX
                    elif count == MAX_PAYLOAD_BYTES:
                        fault = RowStatus.PAYLOAD_LONG
                    elif 0 <= stated_length <= count:
                        if value != 0:
                            fault = RowStatus.LENGTH_MISMATCH
                    else:
                        payload[row, count] = value
                        count += 1
                elif role == ROLE_BYTES:
                    if a == b:
                        pass  # padding between the last byte and the label, or behind it
                    elif count < stated_length:
                        value = read_byte(data, a, b, payload_base)
                        if value < 0:
                            is_label = read_label(data, a, b, words) >= 0
                            fault = RowStatus.LENGTH_MISMATCH if is_label else RowStatus.PAYLOAD_HEX
                        else:
                            payload[row, count] = value
                            count += 1
                    elif labelled and not has_label:
                        value = read_label(data, a, b, words)
                        if value >= 0:
                            label[row] = value
                            has_label = True
                        elif b - a == 2 and HEX_VALUE[data[a]] < 16 and HEX_VALUE[data[a + 1]] < 16:
                            fault = RowStatus.LENGTH_MISMATCH
                        else:
                            fault = RowStatus.LABEL
                    else:
                        fault = RowStatus.TRAILING if has_label else RowStatus.LENGTH_MISMATCH
                elif role == -1 and a < b:
                    fault = RowStatus.TRAILING
            i += 1
            column += 1
            if last:
                break
        if blank:
            status[row] = RowStatus.SKIPPED
            row += 1
            continue
        if fault == RowStatus.GOOD:
            if column < num_required and not (variable and column == num_roles - 1):
                fault = RowStatus.FIELDS
            elif stated_length >= 0 and count != stated_length:
                fault = RowStatus.LENGTH_MISMATCH
            elif labelled and not has_label:
                fault = RowStatus.FIELDS
        cut_off = i > end  # no newline behind the last line
        if cut_off and fault in (RowStatus.FIELDS, RowStatus.LENGTH_MISMATCH, RowStatus.PAYLOAD_ODD, RowStatus.LABEL):
            fault = RowStatus.TRUNCATED
        if fault == RowStatus.GOOD and name_start < name_end:
            place = find_channel(data, name_start, name_end, names, num_names)
            if cut_off and place == num_names > 0:  # half a name, most likely
                fault = RowStatus.TRUNCATED
            else:
                channel[row] = place
                num_names = max(num_names, place + 1)
        status[row] = fault
        if fault == RowStatus.GOOD:
            length[row] = count
        row += 1
    return num_names
