"""Lines of words or of fields without a header: BUSMASTER, CRTD, CANHacker, Lawicel, Microchip, Avisaro."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kdgat.canbus.messages import MAX_PAYLOAD_BYTES
from kdgat.canbus.readers.rows import RowStatus
from kdgat.canbus.readers.tools.frames import (
    DAY_S,
    SKIPPED,
    TOO_FEW,
    Frame,
    ReadLine,
    Wrap,
    add_seconds,
    decode_text,
    decode_words,
    judge_frame,
    read_clock,
    read_integer,
    read_length,
    read_seconds,
    read_ticks,
)

_EVENT: Final = Frame(RowStatus.EVENT)
_MINUTE_S: Final = 60.0
_MILLISECONDS: Final = 1e3


class LinesOfBusmaster:
    """Read BUSMASTER: `22:17:28:9284 Rx 1 0x21A s 8 FE ...`; a session states how its times and numbers are meant."""

    def __init__(self) -> None:
        """Begin before the first line of a file."""
        self._base = 16
        self._mode = "SYSTEM"
        self._wrap = Wrap(DAY_S)
        self._last = 0.0
        self._first_day: datetime | None = None
        self._days_before_s = 0.0  # from the day of the first session to that of this one

    def __call__(self, line: str) -> Frame:
        """Return what one line holds."""
        words = line.split()
        if words[0].startswith("***"):
            self._learn(line)
            return SKIPPED
        if len(words) < 6:
            return TOO_FEW
        kind = words[4].lower()
        if kind not in ("s", "x", "sr", "xr"):
            return Frame(RowStatus.ERROR_FRAME) if "err" in line.lower() else TOO_FEW
        return judge_frame(
            self._time(read_clock(words[0])),
            read_integer(words[3], self._base),
            decode_words(words[6:], self._base),
            words[5],
            words[2],
            is_remote=kind.endswith("r"),
        )

    def _learn(self, line: str) -> None:
        words = line.strip().strip("*").split()
        if words in (["HEX"], ["DEC"]):
            self._base = 16 if words == ["HEX"] else 10
        elif words[1:] == ["MODE"]:
            self._mode = words[0]
        elif words[:4] == ["START", "DATE", "AND", "TIME"] and len(words) > 4:
            try:
                day = datetime.strptime(words[4], "%d:%m:%Y").replace(tzinfo=UTC)
            except ValueError:
                return
            self._first_day = self._first_day or day
            self._days_before_s = (day - self._first_day).total_seconds()
            self._wrap = Wrap(DAY_S)

    def _time(self, time: float) -> float:
        if self._mode == "RELATIVE":  # to the message before
            if math.isfinite(time):
                time = self._last = add_seconds(time, self._last)
            return time
        return add_seconds(self._wrap(time) if self._mode == "SYSTEM" else time, self._days_before_s)


_CRTD_FRAME: Final = re.compile(r"(\d*)[RT](?:11|29)")
_CRTD_OTHER: Final = re.compile(r"\d*[A-QSU-Z][A-Z0-9]{2}")


def read_crtd(line: str) -> Frame:
    """Read CRTD of OVMS: `1542473901.020305 1R11 213 00 ...`; a record of another kind is none of the bus."""
    words = line.split()
    if len(words) < 2:
        return TOO_FEW
    found = _CRTD_FRAME.fullmatch(words[1])
    if not found:
        if words[1].endswith(("CXX", "CVR")):
            return SKIPPED
        return _EVENT if _CRTD_OTHER.fullmatch(words[1]) else TOO_FEW
    if len(words) < 3:
        return TOO_FEW
    time = read_seconds(words[0]) if "." in words[0] else math.nan  # without a point some count microseconds
    return judge_frame(time, read_integer(words[2]), decode_words(words[3:]), channel=found[1] or "1")


class LinesOfCanHacker:
    """Read CANHacker: `04.190 00000581 8 36 47 ...`, with a comment behind; times begin anew after a minute."""

    def __init__(self) -> None:
        """Begin before the first line of a file."""
        self._wrap = Wrap(_MINUTE_S)
        self._has_begun = False

    def __call__(self, line: str) -> Frame:
        """Return what one line holds."""
        words = line.split()
        time = read_seconds(words[0])
        if not self._has_begun and not math.isfinite(time):
            return SKIPPED
        self._has_begun = True
        if len(words) < 3:
            return TOO_FEW
        num_bytes = max(read_length(words[2]), 0)
        is_remote = words[3:4] == ["RTR"]
        data = RowStatus.PAYLOAD_HEX if is_remote else decode_words(words[3 : 3 + num_bytes])
        return judge_frame(self._wrap(time), read_integer(words[1]), data, words[2], is_remote=is_remote)


class LinesOfLawicel:
    """Read the answers of a Lawicel adapter (slcan) with its times: `t1232AABB1A2B`; they begin anew after a minute."""

    def __init__(self) -> None:
        """Begin before the first line of a file."""
        self._wrap = Wrap(_MINUTE_S)

    def __call__(self, line: str) -> Frame:
        """Return what one line holds."""
        text = line.strip()
        if text[0] not in "tTrR":
            return _EVENT
        place = 9 if text[0] in "TR" else 4
        length = text[place : place + 1]
        is_remote = text[0] in "rR"
        end = place + 1 + (0 if is_remote else 2 * max(read_length(length), 0))
        ticks = read_integer(text[end:]) if len(text) == end + 4 else -1
        time = ticks / _MILLISECONDS if ticks >= 0 else math.nan
        return judge_frame(
            self._wrap(time),
            read_integer(text[1:place]),
            decode_text(text[place + 1 : end]),
            length,
            is_remote=is_remote,
        )


class LinesOfMicrochip:
    """Read Microchip's CAN Bus Analyzer: `166064;RX;0x0000021A;8;0xFE;...`, whole milliseconds."""

    def __init__(self) -> None:
        """Begin before the first line of a file."""
        self._is_heading = False

    def __call__(self, line: str) -> Frame:
        """Return what one line holds."""
        if line.startswith("//"):
            self._is_heading = not self._is_heading
            return SKIPPED
        if self._is_heading:
            return SKIPPED
        fields = [field.strip() for field in line.split(";")]
        if len(fields) < 4:
            return TOO_FEW
        words = fields[4 : 4 + max(read_length(fields[3]), 0)]
        return judge_frame(
            read_ticks(fields[0], _MILLISECONDS),
            read_integer(fields[2], 10),
            decode_words([word for word in words if word], 10),
            fields[3],
        )


class LinesOfAvisaro:
    """Read Avisaro: `2018/11/02,15:06:27,480, $C2, 0fffffff, 8, 00, ...`, bytes up to eight, times taken for UTC."""

    def __init__(self) -> None:
        """Begin before the first line of a file."""
        self._date = ""
        self._day_s = math.nan

    def __call__(self, line: str) -> Frame:
        """Return what one line holds."""
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 6:
            return TOO_FEW
        if fields[0] != self._date:
            self._date, self._day_s = fields[0], _day_s(fields[0])
        words = fields[6 : 6 + max(read_length(fields[5]), 0)]
        return judge_frame(
            round(self._day_s + read_clock(fields[1]) + read_ticks(fields[2], _MILLISECONDS), 3),
            read_integer(fields[4]),
            decode_words([word for word in words if word]),
            fields[5],
            fields[3].removeprefix("$"),
        )


def _day_s(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y/%m/%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return math.nan


_HEX: Final = "[0-9A-Fa-f]"
_ID_11, _ID_29 = f"[0-7]{_HEX}{{2}}", f"[01]{_HEX}{{7}}"
_BYTES: Final = "|".join(f"{length}{_HEX}{{{2 * length}}}" for length in range(MAX_PAYLOAD_BYTES + 1))


class Form(NamedTuple):
    """How the lines of a tool look, and what it writes above them."""

    tool: str
    line: re.Pattern[str]
    heading: re.Pattern[str] | None
    reader: Callable[[], ReadLine]


FORMS: Final = (
    Form(
        "BUSMASTER",
        re.compile(r"\d+:\d+:\d+:\d+\s+[RT]x\s+\d+\s+\w+\s+[sx]r?\s+\d", re.IGNORECASE),
        re.compile(r"\*\*\*PROTOCOL CAN\b"),
        LinesOfBusmaster,
    ),
    Form("CRTD", re.compile(r"\d+\.\d+ \d*(?:[RT](?:11|29) [0-9A-Fa-f]|C[A-Z]{2} )"), None, lambda: read_crtd),
    Form(
        "CANHacker",
        re.compile(r" *\d+[.,]\d{3,6} +[0-9A-Fa-f]{3,8} +[0-8](?: |\r|$)"),
        re.compile(r"Time\s+ID\s+DLC\s+Data\s+Comment|.*CANHacker"),
        LinesOfCanHacker,
    ),
    Form(
        "Lawicel",
        re.compile(rf"(?:(?:t{_ID_11}|T{_ID_29})(?:{_BYTES})|(?:r{_ID_11}|R{_ID_29})[0-8]){_HEX}{{4}}\s*$"),
        None,
        LinesOfLawicel,
    ),
    Form(
        "Microchip",
        re.compile(r"\d+;[RT]X;(?:0x)?[0-9A-F]+;\d;", re.IGNORECASE),
        re.compile(r"CAN BUS Analyzer", re.IGNORECASE),
        LinesOfMicrochip,
    ),
    Form(
        "Avisaro",
        re.compile(r"\d{4}/\d\d/\d\d,\s*\d\d:\d\d:\d\d,\s*\d{1,3},\s*\$?C?\d,\s*[0-9a-fA-F]+,\s*\d,"),
        None,
        LinesOfAvisaro,
    ),
)


def find_form(lines: Sequence[str]) -> Callable[[], ReadLine] | None:
    """Find the tool by how most of the lines look, or by what stands above them; return what makes its reader."""
    written = [line for line in lines if line.strip()]
    for form in FORMS:
        num_found = sum(bool(form.line.match(line)) for line in written)
        has_heading = form.heading is not None and any(map(form.heading.match, written[:20]))
        if has_heading or num_found > len(written) / 2:
            return form.reader
    return None
