"""Evidence against identifiers, which adds up and halves with time, and what is known of the bus meanwhile."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

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


# What kernels are compiled with.
NOTHING, TOO_MANY, EXTRA, PAYLOAD, FAST, STRANGERS, SILENT, NEW, JUMP, MANY_BITS, STILL, BREAK, CHECKSUM = map(
    int, Reason
)
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

# Columns of the state of the bus.
(
    HAS_BEGUN,
    NOW,
    START,
    SLICE,
    USUAL_GAP,
    NUM_GAPS,
    EXCUSED,
    RESUMED_AT,
    IS_ON,
    LAST_EVIDENCE,
    LAST_SUSPICION,
    GENERATION,
    NEXT_SCAN,
    IS_FUZZED,
    FUZZED_SINCE,
    NUM_STRANGE,  # looks in a row that found many identifiers that came once: no single one adds up
    UNEXPECTED,  # messages of identifiers that the profile does not know, each of which counts half after some seconds,
    UNEXPECTED_AT,  # as of then,
    NEWCOMERS,  # and such identifiers themselves, in the same way;
    NEWCOMERS_AT,
    NUM_NEWCOMERS,  # all of them
    REASON,  # of the newest evidence, and the identifier that it speaks against
    SUSPECT,
    IS_BRIEF,  # the alarm is of single messages alone
    GAP,  # between two pieces of its evidence, about,
    HOLD,  # and how long it outlives the last one
    LOAD_AT,  # end of the last slice of time,
    LOAD_SLICES,  # how many there were without a pause,
    LOAD_MOST,  # the most messages that came in some of them,
    LOAD_FRESH,
    LOAD_WAITING,
    LOAD_NEXT,
    LOAD_ANCHOR,  # the most of the free time,
    LOAD_FREE,  # until when that is,
    LOAD_FULL,  # and for how long there were more than the most
    LOAD,  # messages in each of the last slices: this column and those that follow
) = range(36)
NUM_SLICES: Final = 4
NUM_BUS: Final = 35 + NUM_SLICES


def kind_of_reason(reason: int) -> int:
    """Return what a reason is, without the field that it is about."""
    return reason & KIND_OF_REASON


@njit(cache=True)
def heed_stall(bus: NDArray[np.float64], now: float, has_resumed: bool) -> None:
    """Excuse what queued up while bus or recorder stood still, and wait for nobody who came before."""
    gap = now - bus[NOW]
    if has_resumed:
        bus[RESUMED_AT], bus[EXCUSED] = now, now + 0.5
    elif bus[NUM_GAPS] > 64.0 and gap > max(_STALL_GAPS * bus[USUAL_GAP], _SHORT_STALL_S):
        if gap > _STALL_S:
            bus[EXCUSED] = now + min(2.0 * gap, 0.5)
            bus[RESUMED_AT] = now
    elif gap > 0.0:
        bus[USUAL_GAP] += (gap - bus[USUAL_GAP]) / min(bus[NUM_GAPS] + 1.0, 512.0)
        bus[NUM_GAPS] += 1.0


@njit(cache=True)
def weigh(
    known: NDArray[np.float64], bus: NDArray[np.float64], now: float, reason: int, weight: float, is_brief: bool
) -> None:
    """Add evidence to what there is against an identifier; enough of it begins an alarm, more keeps it.

    What is brief speaks against single messages: enough of it is an alarm of this message alone, and neither adds up
    with what comes before and after it nor keeps an alarm.
    """
    need = NEED
    if reason <= EXTRA:
        need = _NEED_OF_TIMES if known[habit.LEARNED] >= _LONG_KNOWN else _NEED_OF_YOUNG
    half_s = _HALF_S + _HALF_INTERVALS * known[habit.USUAL]
    faded = 0.0
    if known[habit.EVIDENCE] > 0.0:  # from the beginning there is none, as of no time
        faded = known[habit.EVIDENCE] * 2.0 ** (-(now - known[habit.EVIDENCE_AT]) / half_s)
    evidence = min(faded + weight, 3.0 * need)
    if not is_brief or weight < NEED:
        known[habit.EVIDENCE], known[habit.EVIDENCE_AT] = evidence, now
    if is_brief:
        if evidence >= need and (bus[IS_ON] == 0.0 or bus[IS_BRIEF] != 0.0):
            bus[IS_ON], bus[IS_BRIEF], bus[HOLD], bus[LAST_EVIDENCE] = 1.0, 1.0, HOLD_S, now - HOLD_S + _BRIEF_S
    elif bus[IS_FUZZED] != 0.0 and reason <= EXTRA:
        pass  # random identifiers were those of others, too, whose own messages come too early after that
    elif evidence >= need or (bus[IS_ON] != 0.0 and bus[IS_BRIEF] == 0.0):
        if bus[IS_ON] == 0.0 or bus[IS_BRIEF] != 0.0:
            bus[GAP] = HOLD_S / _GAPS
        else:
            bus[GAP] += (min(now - bus[LAST_EVIDENCE], HOLD_S) - bus[GAP]) / _GAPS
        interval = 0.0 if reason == STRANGERS else known[habit.USUAL]
        bus[HOLD] = min(max(_GAPS * bus[GAP], _INTERVALS * interval, _SHORTEST_HOLD_S), HOLD_S)
        bus[IS_ON], bus[IS_BRIEF], bus[LAST_EVIDENCE] = 1.0, 0.0, now


@njit(cache=True)
def count_unexpected(bus: NDArray[np.float64], now: float, is_new: bool, most: float) -> bool:
    """Count a message of an identifier that the profile does not know; return whether it may have missed so many.

    Messages within a tenth of a second count once, as those of a unit that wakes or answers; and each identifier that
    it does not know is granted some, as such a unit goes on speaking.
    """
    if is_new:
        bus[NUM_NEWCOMERS] += 1.0
        _count(bus, NEWCOMERS, now, most + _MOST_NEWCOMERS)
    if now - bus[UNEXPECTED_AT] > _TOGETHER_S:
        _count(bus, UNEXPECTED, now, most + _GRANTED * _MOST_NEWCOMERS)
    granted = _GRANTED * min(bus[NUM_NEWCOMERS] - 1.0, _MOST_NEWCOMERS)
    return bool(bus[UNEXPECTED] > most + granted or bus[NEWCOMERS] > most + _MOST_NEWCOMERS)


@njit(cache=True)
def _count(bus: NDArray[np.float64], column: int, now: float, most: float) -> None:
    """Count one more; twice as many as are no news at most: no flood makes all that follows suspicious for long."""
    faded = bus[column] * 2.0 ** (-(now - bus[column + 1]) / UNEXPECTED_HALF_S)
    bus[column], bus[column + 1] = min(faded + 1.0, 2.0 * most), now
