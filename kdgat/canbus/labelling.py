"""Labels of a log that has none: from the times of its attacks, as somebody noted them, or by its scenario.

The times are a table `begin,end,id,data`, or ROAD's `capture_metadata.json`. Beside a log, `<log without
suffix>.attacks.csv` and `capture_metadata.json` are found by themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.base.files import read_utf8
from kdgat.base.text import list_some
from kdgat.canbus.messages import (
    MAX_IDENTIFIER,
    MAX_PAYLOAD_BYTES,
    UNTOLD,
    AttackCampaign,
    Messages,
    ReadOptions,
    RecordingError,
)
from kdgat.canbus.names import ATTACKS_SUFFIX, METADATA_NAME, recording_name, recording_stem

ATTACK_FREE: Final = "attack_free"
"""In the name of a scenario: all messages of its recordings are benign, where they have no labels."""
_ATTACK_FREE_NAME: Final = re.compile(rf"{ATTACK_FREE}(?![a-z])")  # a freeze is an attack
LEARNED_AS_BENIGN: Final = "has no labels, so attacks in it would be learned as benign"
SLACK_S: Final = 1.0  # times noted by hand may lie so far outside the log
MOST_SHOWN: Final = 8
_COLUMNS: Final = ("begin", "end", "id", "data")
_FORM: Final = "write a table begin,end,id: seconds, and the hexadecimal id of the injected messages, or none for any"
_OTHER_NAMES: Final = {"start": "begin", "stop": "end", "identifier": "id", "payload": "data"}
_ANY: Final = re.compile(r"x*|\*|any|all|none", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AttackTime:
    """A time in which messages were injected: those of an id, or nobody knows which."""

    begin_s: float  # on the log's clock, or from its beginning
    end_s: float
    identifier: int | None = None
    data: str = ""  # hexadecimal digits that injected payloads have, X for any
    where: str = ""  # in the file that tells it

    def __str__(self) -> str:
        """Name it as in its file."""
        return f"{self.where} ({self.begin_s:g} to {self.end_s:g})"


def labels_beside(path: Path, scenario: str = "") -> Path | str | None:
    """Find what labels a log without labels: a file beside it, ATTACK_FREE by its scenario, or nothing."""
    if (table := _table_beside(path)).is_file():
        return table
    metadata = path.with_name(METADATA_NAME)
    if metadata.is_file() and _told(metadata, _captures(metadata), path) is not None:
        return metadata
    names = (scenario, recording_name(path)[0])
    return ATTACK_FREE if any(_ATTACK_FREE_NAME.search(re.sub(r"[\s-]", "_", name.lower())) for name in names) else None


def ask_for_labels(path: Path) -> str:
    """Say how a recording without labels gets some."""
    return (
        f"if it holds no attack, put {ATTACK_FREE} into its scenario's name, or bring it in by `kdgat data import "
        f"--attack-free`; else write when it was attacked, a table begin,end,id in seconds, to {_table_beside(path)}"
    )


def learned_as_benign(path: Path) -> RecordingError:
    """Return the error of a recording without labels that would train."""
    return RecordingError(path, f"{LEARNED_AS_BENIGN}: {ask_for_labels(path)}")


def say_untested(paths: Sequence[Path]) -> str:
    """Say that test recordings, at least one, have no labels, and how they get some."""
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"no labels, and so no part in any test: {paths[0]}{more}; {ask_for_labels(paths[0])}"


def _table_beside(path: Path) -> Path:
    return path.with_name(f"{recording_stem(path)}{ATTACKS_SUFFIX}")


def label_by_surroundings(messages: Messages, path: Path, options: ReadOptions | None = None) -> None:
    """Label messages without labels by what is beside their file; RecordingError where that does not fit the log."""
    found = labels_beside(path, messages.scenario)
    if isinstance(found, Path):
        label_by_times(messages, path, found, options)
    elif found is not None:
        messages.labelled, messages.labels_from = True, f"{found} in the scenario's name"


def label_by_times(messages: Messages, path: Path, attacks: Path, options: ReadOptions | None = None) -> None:
    """Label the messages of a log by the times of its attacks.

    With an id its messages in that time (which have the payload, if one is given) are attacks. Without one nobody knows
    which were injected: all of that time are, and no identifier of a window is told as attacked.

    Raises:
        RecordingError: for a file that cannot be read, times outside of the log, and ids that it does not hold; where
            the log was read wrongly, as in another unit of times than `options` should say, for that.
    """
    times = read_attack_times(attacks, path)
    try:
        _label(messages, path, attacks, times)
    except RecordingError as misfit:
        from kdgat.canbus.look import look_at  # and the kernels that it compiles

        if problem := look_at(messages).problem(options):
            raise RecordingError(path, problem) from misfit
        raise


def _label(messages: Messages, path: Path, attacks: Path, times: Sequence[AttackTime]) -> None:
    offset = _offset(messages, path, attacks, times)
    messages.label = np.zeros(len(messages), np.uint8)
    campaigns = []
    for time in times:
        begin, end = time.begin_s + offset, time.end_s + offset
        hit = (messages.timestamp >= begin) & (messages.timestamp <= end)
        if time.identifier is None:
            campaigns.append(AttackCampaign(UNTOLD, begin, end))
        else:
            hit &= messages.identifier == time.identifier
        if time.data:
            hit &= _has_payload(messages, time.data)
        if not hit.any():
            raise _misfit(path, attacks, time, _why_none(messages, time))
        messages.label[hit] = 1
    messages.labelled, messages.labels_from = True, str(attacks)
    messages.campaigns = (*messages.campaigns, *campaigns)


def read_attack_times(attacks: Path, path: Path) -> list[AttackTime]:
    """Read the times of a log's attacks from a table, or from ROAD's metadata, a `.json`; none for an empty table."""
    if attacks.suffix.lower() != ".json":
        return _read_table(attacks)
    captures = _captures(attacks)
    if recording_name(path)[1] not in captures:
        told = list_some(sorted(captures), MOST_SHOWN) or "nothing"
        raise RecordingError(attacks, f"tells nothing of {recording_name(path)[1]!r}; it tells of {told}")
    found = _told(attacks, captures, path)
    if found is None:
        raise RecordingError(
            attacks,
            f"has no injection_interval for {recording_name(path)[1]!r}; if that log holds no attack, bring it in by "
            "`kdgat data import --attack-free`",
        )
    return found


def _read_table(attacks: Path) -> list[AttackTime]:
    rows = [
        (number, [cell.strip(' "\t') for cell in re.split("[,;\t]", line)])
        for number, line in enumerate(_text(attacks).splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    columns = list(_COLUMNS)
    if rows and not _is_number(rows[0][1][0]):
        names = [name.lower() for name in rows.pop(0)[1]]
        columns = [_OTHER_NAMES.get(name, name) for name in names]
        if not {"begin", "end"} <= set(columns) or set(columns) - set(_COLUMNS):
            raise RecordingError(attacks, f"has the header {','.join(names)!r}, which is not known; {_FORM}")
    found = []
    for number, cells in rows:
        row = dict(zip(columns, cells, strict=False))
        where = f"line {number}"
        found.append(_attack_time(attacks, where, row.get("begin"), row.get("end"), row.get("id"), row.get("data")))
    return found


def _captures(metadata: Path) -> dict[str, Any]:
    try:
        content = json.loads(_text(metadata))
    except ValueError as error:
        raise RecordingError(metadata, f"is no valid JSON ({error}); copy it again") from error
    if not isinstance(content, dict) or not all(isinstance(capture, dict) for capture in content.values()):
        raise RecordingError(metadata, "does not map names of captures to what was injected into them")
    return content


def _told(metadata: Path, captures: dict[str, Any], path: Path) -> list[AttackTime] | None:
    """Return the times of a capture; None where nothing is told of any."""
    name = recording_name(path)[1]
    capture = captures.get(name, {})
    intervals = capture.get("injection_interval")
    if not intervals:
        return None
    several = isinstance(intervals, list) and all(isinstance(one, list) for one in intervals)
    pairs = [
        one if isinstance(one, list) and len(one) == 2 else (None, None)
        for one in (intervals if several else [intervals])
    ]
    where, told = f"injection_interval of {name}", (capture.get("injection_id"), capture.get("injection_data_str"))
    return [_attack_time(metadata, where, begin, end, *told) for begin, end in pairs]


def _attack_time(attacks: Path, where: str, begin: Any, end: Any, identifier: Any, data: Any) -> AttackTime:
    if not (_is_number(begin) and _is_number(end)):
        raise RecordingError(attacks, f"{where}: begin {begin!r} and end {end!r} are no two numbers; {_FORM}")
    if float(end) < float(begin):
        raise RecordingError(attacks, f"{where}: ends at {end}, before it begins at {begin}; exchange them")
    number = identifier if isinstance(identifier, int) else None
    text = str(identifier or "").strip()
    if number is None and not _ANY.fullmatch(text):
        try:
            number = int(text, 16)
        except ValueError:
            raise RecordingError(attacks, f"{where}: id {text!r} is no hexadecimal number; {_FORM}") from None
    if number is not None and not 0 <= number <= MAX_IDENTIFIER:
        raise RecordingError(attacks, f"{where}: id {text!r} is beyond 29 bits")
    digits = re.sub(r"[\s.]", "", str(data or "")).upper()
    if _ANY.fullmatch(digits):
        digits = ""
    if not re.fullmatch("[0-9A-FX]*", digits):
        raise RecordingError(attacks, f"{where}: data {data!r} holds other than hexadecimal digits, and X for any")
    return AttackTime(float(begin), float(end), number, digits, where)


def _is_number(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def _text(path: Path) -> str:
    try:
        return read_utf8(path)
    except (UserError, OSError) as error:
        raise RecordingError(path, f"cannot be read as the times of attacks: {error}") from error


def _offset(messages: Messages, path: Path, attacks: Path, times: Sequence[AttackTime]) -> float:
    """Return what turns the times into the log's: 0, or its beginning where they count from there."""
    stamps = messages.timestamp if messages.timestamp[0] == 0.0 else messages.timestamp[messages.timestamp != 0.0]
    first, last = float(stamps.min()), float(stamps.max())  # 0 behind others is none: the tool itself sent those
    offset = 0.0 if attacks.suffix.lower() != ".json" and _is_near(times, 0.0, first, last) else first
    for time in times:
        if not _is_near([time], offset, first, last):
            problem = f"lies outside of the log, which goes from {first:.6f} to {last:.6f}, for {last - first:.3f} s"
            raise _misfit(path, attacks, time, problem)
    return offset


def _is_near(times: Iterable[AttackTime], offset: float, first: float, last: float) -> bool:
    return all(
        first - SLACK_S <= time.begin_s + offset <= last and first <= time.end_s + offset <= last + SLACK_S
        for time in times
    )


def _has_payload(messages: Messages, digits: str) -> NDArray[np.bool_]:
    """Return which payloads have these digits; one that is too short has none of those behind it."""
    found = np.ones(len(messages), bool)
    for place, digit in enumerate(digits):
        if digit != "X":
            byte = min(place // 2, MAX_PAYLOAD_BYTES - 1)
            value = messages.payload[:, byte] >> (0 if place % 2 else 4) & 15
            found &= (value == int(digit, 16)) & (messages.length > place // 2)
    return found


def _why_none(messages: Messages, time: AttackTime) -> str:
    if time.identifier is None:
        return f"holds no message{f' with the payload {time.data}' if time.data else ''}"
    identifiers, counts = np.unique(messages.identifier, return_counts=True)
    if time.identifier not in identifiers:
        order = np.argsort(-counts, kind="stable")
        shown = list_some([f"{identifier:X}" for identifier in identifiers[order]], MOST_SHOWN) or "nothing"
        return f"id {time.identifier:X} never comes in the log; its ids are {shown}"
    return f"id {time.identifier:X} does not come then{f' with the payload {time.data}' if time.data else ''}"


def _misfit(path: Path, attacks: Path, time: AttackTime, problem: str) -> RecordingError:
    return RecordingError(attacks, f"does not fit {path}: {time}: {problem}")
