"""Evidence against identifiers, which adds up and halves with time, and what is known of the bus meanwhile."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.suspicion import habits as habit


class Reason(IntEnum):
    """What speaks against an identifier; from `JUMP` on only if a profile knows it."""

    NOTHING = 0
    TOO_MANY = 1
    EXTRA = 2
    PAYLOAD = 3
    FAST = 4
    STRANGERS = 5
    SILENT = 6
    NEW = 7
    JUMP = 8
    MANY_BITS = 9
    STILL = 10
    BREAK = 11
    CHECKSUM = 12


KIND_OF_REASON: Final = 15  # its bits; those above say which field of the identifier it was, of a JUMP
NEED = 3.0  # evidence for an alarm,
_NEED_OF_TIMES = 5.0  # if it is of times: one event may bring some messages too many
_LONG_KNOWN, _NEED_OF_YOUNG = 60.0, 8.0  # intervals; whoever is known by fewer may send by events, too
_HALF_S, _HALF_INTERVALS = 0.5, 4.0  # in which evidence halves
UNEXPECTED_HALF_S: Final = 20.0
_TOGETHER_S = 0.1  # in which messages of identifiers that the profile does not know count once
_GRANTED, _MOST_NEWCOMERS = 2.0, 24.0  # messages for each such identifier but the first, and how many there may be
HOLD_S: Final = 0.3  # an alarm outlives its last evidence,
_GAPS, _INTERVALS, _SHORTEST_HOLD_S = 4.0, 4.0, 0.05  # by less where it is dense: by gaps, intervals, seconds;
_BRIEF_S = 0.001  # but for that of one message alone
_STALL_S, _STALL_GAPS, _SHORT_STALL_S = 0.1, 8.0, 0.004


class BusColumns(NamedTuple):
    """Number the columns of the state of the bus."""

    has_begun: int
    now: int
    start: int
    slice: int
    usual_gap: int
    num_gaps: int
    excused: int
    resumed_at: int
    is_on: int
    last_evidence: int
    last_suspicion: int
    generation: int
    next_scan: int
    is_fuzzed: int
    fuzzed_since: int
    num_strange: int  # looks in a row that found many identifiers that came once: no single one adds up
    unexpected: int  # messages of identifiers that the profile does not know, each counting half after some seconds,
    unexpected_at: int  # as of then,
    newcomers: int  # and such identifiers themselves, in the same way;
    newcomers_at: int
    num_newcomers: int  # all of them
    reason: int  # of the newest evidence, and the identifier that it speaks against
    suspect: int
    is_brief: int  # the alarm is of single messages alone
    gap: int  # between two pieces of its evidence, about,
    hold: int  # and how long it outlives the last one
    load_at: int  # end of the last slice of time,
    load_slices: int  # how many there were without a pause,
    load_most: int  # the most messages that came in some of them,
    load_fresh: int
    load_waiting: int
    load_next: int
    load_anchor: int  # the most of the free time,
    load_free: int  # until when that is,
    load_full: int  # and for how long there were more than the most
    load: int  # messages in each of the last slices: this column and those that follow


AT: Final = BusColumns(*range(len(BusColumns._fields)))
NUM_SLICES: Final = 4
NUM_BUS: Final = AT.load + NUM_SLICES


def kind_of_reason(reason: int) -> int:
    """Return what a reason is, without the field that it is about."""
    return reason & KIND_OF_REASON


@njit(cache=True)
def heed_stall(bus: NDArray[np.float64], now: float, has_resumed: bool) -> None:
    """Excuse what queued up while bus or recorder stood still, and wait for nobody who came before."""
    gap = now - bus[AT.now]
    if has_resumed:
        bus[AT.resumed_at], bus[AT.excused] = now, now + 0.5
    elif bus[AT.num_gaps] > 64.0 and gap > max(_STALL_GAPS * bus[AT.usual_gap], _SHORT_STALL_S):
        if gap > _STALL_S:
            bus[AT.excused] = now + min(2.0 * gap, 0.5)
            bus[AT.resumed_at] = now
    elif gap > 0.0:
        bus[AT.usual_gap] += (gap - bus[AT.usual_gap]) / min(bus[AT.num_gaps] + 1.0, 512.0)
        bus[AT.num_gaps] += 1.0


@njit(cache=True)
def weigh(
    known: NDArray[np.float64], bus: NDArray[np.float64], now: float, reason: int, weight: float, is_brief: bool
) -> None:
    """Add evidence to what there is against an identifier; enough of it begins an alarm, more keeps it.

    What is brief speaks against single messages: enough of it is an alarm of this message alone, and neither adds up
    with what comes before and after it nor keeps an alarm.
    """
    need = NEED
    if reason <= Reason.EXTRA:
        need = _NEED_OF_TIMES if known[habit.LEARNED] >= _LONG_KNOWN else _NEED_OF_YOUNG
    half_s = _HALF_S + _HALF_INTERVALS * known[habit.USUAL]
    faded = 0.0
    if known[habit.EVIDENCE] > 0.0:  # from the beginning there is none, as of no time
        faded = known[habit.EVIDENCE] * 2.0 ** (-(now - known[habit.EVIDENCE_AT]) / half_s)
    evidence = min(faded + weight, 3.0 * need)
    if not is_brief or weight < NEED:
        known[habit.EVIDENCE], known[habit.EVIDENCE_AT] = evidence, now
    if is_brief:
        if evidence >= need and (bus[AT.is_on] == 0.0 or bus[AT.is_brief] != 0.0):
            bus[AT.is_on] = bus[AT.is_brief] = 1.0
            bus[AT.hold], bus[AT.last_evidence] = HOLD_S, now - HOLD_S + _BRIEF_S
    elif bus[AT.is_fuzzed] != 0.0 and reason <= Reason.EXTRA:
        pass  # random identifiers were those of others, too, whose own messages come too early after that
    elif evidence >= need or (bus[AT.is_on] != 0.0 and bus[AT.is_brief] == 0.0):
        if bus[AT.is_on] == 0.0 or bus[AT.is_brief] != 0.0:
            bus[AT.gap] = HOLD_S / _GAPS
        else:
            bus[AT.gap] += (min(now - bus[AT.last_evidence], HOLD_S) - bus[AT.gap]) / _GAPS
        interval = 0.0 if reason == Reason.STRANGERS else known[habit.USUAL]
        bus[AT.hold] = min(max(_GAPS * bus[AT.gap], _INTERVALS * interval, _SHORTEST_HOLD_S), HOLD_S)
        bus[AT.is_on], bus[AT.is_brief], bus[AT.last_evidence] = 1.0, 0.0, now


@njit(cache=True)
def count_unexpected(bus: NDArray[np.float64], now: float, is_new: bool, most: float) -> bool:
    """Count a message of an identifier that the profile does not know; return whether it may have missed so many.

    Messages within a tenth of a second count once, as those of a unit that wakes or answers; and each identifier that
    it does not know is granted some, as such a unit goes on speaking.
    """
    if is_new:
        bus[AT.num_newcomers] += 1.0
        _count(bus, AT.newcomers, now, most + _MOST_NEWCOMERS)
    if now - bus[AT.unexpected_at] > _TOGETHER_S:
        _count(bus, AT.unexpected, now, most + _GRANTED * _MOST_NEWCOMERS)
    granted = _GRANTED * min(bus[AT.num_newcomers] - 1.0, _MOST_NEWCOMERS)
    return bool(bus[AT.unexpected] > most + granted or bus[AT.newcomers] > most + _MOST_NEWCOMERS)


@njit(cache=True)
def _count(bus: NDArray[np.float64], column: int, now: float, most: float) -> None:
    """Count one more; twice as many as are no news at most: no flood makes all that follows suspicious for long."""
    faded = bus[column] * 2.0 ** (-(now - bus[column + 1]) / UNEXPECTED_HALF_S)
    bus[column], bus[column + 1] = min(faded + 1.0, 2.0 * most), now
