"""Learn a profile from recordings of a vehicle without attacks, or go on with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.canbus.features.bus_time import RESUMED, UNTIMED, BusClock
from kdgat.canbus.features.memory import IdentifierNumbers
from kdgat.canbus.features.suspicion import Reason, SuspicionState
from kdgat.canbus.features.suspicion.habits import MOST_CARRIED, NEAR, NEAR_S, NUM_SPANS
from kdgat.canbus.features.suspicion.known import MOST_FIELDS
from kdgat.canbus.messages import Messages
from kdgat.canbus.profile.checksum import find_checksum
from kdgat.canbus.profile.fields import NUM_PAYLOAD_BITS, PayloadField, find_fields
from kdgat.canbus.profile.identifier import MOST_MESSAGES, IdentifierProfile
from kdgat.canbus.profile.profile import Drive, Profile

MOST_IN_ALARM: Final = 0.05  # of the time of a drive, that its own habits call suspicious
_STALL_GAPS, _STALL_S = 8.0, 0.1  # the bus or its recorder stood still
_BEGUN_S = 2.0  # of messages without a pause
_BEFORE_ALARM_S = 0.5  # what has come to it before there was an alarm
_MOST_IDENTIFIERS = 4096  # no bus has as many


class _Stretch(NamedTuple):
    """Consecutive messages [M] of a drive, without pauses and alarms."""

    time: NDArray[np.float64]
    identifier: NDArray[np.uint32]
    payload: NDArray[np.uint64]
    length: NDArray[np.uint8]
    is_timed: NDArray[np.bool_]  # it is known when the message came

    def select(self, rows: NDArray[np.int64]) -> _Stretch:
        """Return some rows."""
        return _Stretch(
            self.time[rows], self.identifier[rows], self.payload[rows], self.length[rows], self.is_timed[rows]
        )


def learn_profile(
    drives: Iterable[tuple[str, Messages]], profile: Profile | None = None, *, is_trusted: bool = False
) -> Profile:
    """Return what drives without attacks, each with its name, show of a vehicle; of `profile`, what holds still.

    Drives that `profile` has learned already are passed over. What the habits of a drive's own identifiers call an
    alarm is left out, unless the drives are trusted. UserError for one that looks attacked, or shows nothing.
    """
    start = profile or Profile()
    new: list[Drive] = []
    seconds = start.seconds
    stretches: dict[int, list[_Stretch]] = {}
    first_s: dict[int, float] = {}
    latest_s: dict[int, float] = {}  # of a drive, before it came first
    num_present: Counter[int] = Counter()
    learned_before = {drive.content_hash for drive in start.drives}
    for name, messages in drives:
        if learned_before and messages.content_hash() in learned_before:
            continue
        drive, found = _read(name, messages, is_trusted)
        present = set()
        # A first message and then a pause: the bus has not begun yet.
        begin = next((one.time[0] for one in found if one.time[-1] - one.time[0] >= _BEGUN_S), found[0].time[0])
        for stretch in found:
            order = np.argsort(stretch.identifier, kind="stable")
            numbers, begins = np.unique(stretch.identifier[order], return_index=True)
            for number, own in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
                for rows in np.split(own, np.flatnonzero(~stretch.is_timed[own])):
                    kept = rows[stretch.is_timed[rows]]
                    if len(kept):
                        stretches.setdefault(number, []).append(stretch.select(kept))
                since = max(float(stretch.time[own[0]] - begin), 0.0)
                first_s.setdefault(number, seconds + since)
                if number not in present:
                    latest_s[number] = max(latest_s.get(number, 0.0), since)
                present.add(number)
        new.append(drive)
        seconds += drive.seconds
        num_present.update(present)
    identifiers = {
        number: _describe(own, first_s[number], latest_s[number], len(new) - num_present[number])
        for number, own in stretches.items()
    }
    for number, known in start.identifiers.items():
        if number in stretches:
            identifiers[number] = _go_on(known, identifiers[number], stretches[number])
        else:
            absent = known.num_drives_absent + len(new)
            identifiers[number] = known.model_copy(update={"num_drives_absent": absent})
    learned = {"drives": [*start.drives, *new], "identifiers": dict(sorted(identifiers.items()))}
    return start.model_copy(update=learned)


def _read(name: str, messages: Messages, is_trusted: bool) -> tuple[Drive, list[_Stretch]]:
    """Cut a drive where the log pauses, and leave alarms out."""
    if not len(messages):
        raise UserError(f"{name}: holds no message, so nothing is learned from it: leave it out")
    read = BusClock().read(np.ascontiguousarray(messages.timestamp))
    time = np.maximum.accumulate(read.time)
    identifier = np.ascontiguousarray(messages.identifier)
    payload = np.ascontiguousarray(messages.payload).view("<u8").reshape(-1)
    length = np.ascontiguousarray(messages.length)
    numbered = IdentifierNumbers().number(identifier)
    if numbered.num_numbers > _MOST_IDENTIFIERS:
        raise UserError(f"{name}: has {numbered.num_numbers:,} identifiers, which no vehicle has: leave it out")
    found = SuspicionState().judge(time, identifier, numbered, payload, length, read.breaks)
    is_alarm = found.reason != Reason.NOTHING
    gaps = np.diff(time, prepend=time[0])
    seconds = float(time[-1] - time[0])
    in_alarm = float(gaps[is_alarm].sum())
    begins = np.flatnonzero(is_alarm & ~np.concatenate([[False], is_alarm[:-1]]))
    if in_alarm > MOST_IN_ALARM * seconds and not is_trusted:
        first = float(time[begins[0]] - time[0])
        alarms = "1 alarm takes" if len(begins) == 1 else f"{len(begins)} alarms take"
        raise UserError(
            f"{name}: looks attacked: {alarms} {in_alarm:.1f} of its {seconds:.1f} s, the first after "
            f"{first:.3f} s (see `kdgat detect`): give other minutes, or --trust if you know that there is no attack"
        )
    is_pause = (gaps > max(_STALL_GAPS * float(gaps.mean()), _STALL_S)) | (read.breaks == RESUMED)
    left_out = np.zeros_like(is_alarm) if is_trusted else is_alarm.copy()
    for begin in begins if not is_trusted else ():
        left_out[np.searchsorted(time, time[begin] - _BEFORE_ALARM_S) : begin] = True
    cut = is_pause | (left_out != np.concatenate([left_out[:1], left_out[:-1]]))
    stretch = np.cumsum(cut)
    keep = ~left_out
    if not keep.any():
        raise UserError(f"{name}: nothing of it is left without what looks like an attack: give other minutes")
    drive = Drive(
        name=name,
        content_hash=messages.content_hash(),
        seconds=seconds,
        num_messages=len(messages),
        num_alarms=len(begins),
        alarm_s=in_alarm,
        is_trusted=is_trusted,
    )
    columns = (time[keep], identifier[keep], payload[keep], length[keep], read.breaks[keep] != UNTIMED)
    borders = np.flatnonzero(np.diff(stretch[keep])) + 1
    pieces = (np.split(column, borders) for column in columns)
    return drive, [_Stretch(*piece) for piece in zip(*pieces, strict=True)]


def _describe(stretches: Sequence[_Stretch], first_s: float, latest_s: float, num_absent: int) -> IdentifierProfile:
    intervals = np.concatenate([np.diff(one.time) for one in stretches])
    usual = float(np.median(intervals)) if len(intervals) else 0.0
    payloads = [one.payload for one in stretches]
    lengths = np.unique(np.concatenate([one.length for one in stretches]))
    changed = [_num_changed(one[1:] ^ one[:-1]) for one in payloads]
    are_usual = [_usual_intervals(one.time, usual) for one in stretches]
    num_bytes = int(lengths[0]) if len(lengths) == 1 else 0
    lasting = [np.lib.stride_tricks.sliding_window_view(one, 4).min(axis=1).max() for one in changed if len(one) >= 4]
    fields = find_fields(payloads, num_bytes, are_usual) if num_bytes else []
    return IdentifierProfile(
        num_messages=sum(len(one.time) for one in stretches),
        first_s=first_s,
        first_of_drive_s=latest_s,
        num_drives_absent=num_absent,
        usual_s=usual,
        evenness=float(np.mean(np.abs(intervals - usual) < NEAR * usual + NEAR_S)) if len(intervals) else 0.0,
        longest_s=float(intervals.max(initial=0.0)),
        shortest_s=_shortest_spans(stretches),
        num_changes=int(sum(np.count_nonzero(one) for one in changed)),
        num_still=int(sum(len(one) - np.count_nonzero(one) for one in changed)),
        most_changed=int(max((one.max(initial=0) for one in changed), default=0)),
        most_lasting=int(max(lasting, default=0)),
        checksum=find_checksum(payloads, num_bytes) if num_bytes else None,
        fields=fields,
        unruly=_moved(payloads) & ~_mask(fields),
    )


def _go_on(known: IdentifierProfile, new: IdentifierProfile, stretches: Sequence[_Stretch]) -> IdentifierProfile:
    """Return what is known after further drives: the wider of both, and the fields that keep to their rules still."""
    share = new.num_messages / (known.num_messages + new.num_messages)
    payloads = [one.payload for one in stretches]
    are_usual = [_usual_intervals(one.time, known.usual_s) for one in stretches]
    kept = (field.goes_on_as([field.values(one) for one in payloads], are_usual) for field in known.fields)
    fields = [field for field in kept if field is not None]
    # What the drives before have shown to be no field, a quiet one does not make a field.
    looked_at = known.unruly | _mask(known.fields)
    fields += [one for one in new.fields if not _mask([one]) & looked_at]
    longer = sorted((known.shortest_s, new.shortest_s), key=len)
    spans = [*map(min, zip(*longer, strict=False)), *longer[1][len(longer[0]) :]]
    return IdentifierProfile(
        num_messages=known.num_messages + new.num_messages,
        first_s=known.first_s,
        first_of_drive_s=max(known.first_of_drive_s, new.first_of_drive_s),
        num_drives_absent=known.num_drives_absent + new.num_drives_absent,
        usual_s=known.usual_s if share < 0.5 else new.usual_s,
        evenness=(1.0 - share) * known.evenness + share * new.evenness,
        longest_s=max(known.longest_s, new.longest_s),
        shortest_s=spans,
        num_changes=known.num_changes + new.num_changes,
        num_still=min(known.num_still + new.num_still, MOST_MESSAGES),
        most_changed=max(known.most_changed, new.most_changed),
        most_lasting=max(known.most_lasting, new.most_lasting),
        checksum=known.checksum if known.checksum is not None and known.checksum.holds(payloads) else None,
        fields=fields[:MOST_FIELDS],
        unruly=(looked_at | new.unruly) & ~_mask(fields),
    )


def _moved(payloads: Sequence[NDArray[np.uint64]]) -> int:
    """Return the bits that ever changed, as `_mask` does."""
    moved = int(np.bitwise_or.reduce([np.bitwise_or.reduce(one[1:] ^ one[:-1], initial=0) for one in payloads]))
    return sum(1 << (8 * (bit // 8) + 7 - bit % 8) for bit in range(NUM_PAYLOAD_BITS) if moved >> bit & 1)


def _mask(fields: Iterable[PayloadField]) -> int:
    """Return the bits of fields, each as that bit of a number, from the highest of the first byte on."""
    return sum(1 << bit for bit in {bit for field in fields for bit in field.bits})


def _usual_intervals(time: NDArray[np.float64], usual_s: float) -> NDArray[np.bool_]:
    """Return of each message but the first whether it and the one before came at the usual interval."""
    is_usual = np.abs(np.diff(time) - usual_s) < NEAR * usual_s
    return is_usual & np.concatenate([[False], is_usual[:-1]]) if len(is_usual) else is_usual


def _num_changed(difference: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return for each exclusive or of two payloads [R] what `habits.num_changed` does."""
    orders = (difference, difference.byteswap())
    plain, *gray = (
        np.bitwise_count(one).astype(np.int64) for one in (difference, *(one ^ (one >> np.uint64(1)) for one in orders))
    )
    return np.maximum(np.minimum.reduce([plain, *gray]), plain - MOST_CARRIED)


def _shortest_spans(stretches: Sequence[_Stretch]) -> list[float]:
    """Return in how little time 1, 2, 4 .. intervals ever passed, without pauses."""
    spans = []
    for place in range(NUM_SPANS):
        steps = 1 << place
        found = [one.time[steps:] - one.time[:-steps] for one in stretches if len(one.time) > steps]
        if not found:
            break
        spans.append(float(np.concatenate(found).min()))
    return spans
