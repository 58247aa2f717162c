"""Evidence against identifiers, which adds up and halves with time, and what is known of the bus meanwhile."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit
from kdgat.canbus.features.suspicion import habits as habit

NOTHING, TOO_MANY, EXTRA, PAYLOAD, FAST, STRANGERS, SILENT, NEW = range(8)  # reasons
KIND_OF_REASON: Final = 15  # its bits; those above say which field of the identifier it was, of a JUMP
JUMP, MANY_BITS, STILL = range(8, 11)  # those of a profile: for one message a value was far away, or many bits changed
NEED = 3.0  # evidence for an alarm,
_NEED_OF_TIMES = 5.0  # if it is of times: one event may bring some messages too many
_HALF_S, _HALF_INTERVALS = 0.5, 4.0  # in which evidence halves
UNEXPECTED_HALF_S: Final = 20.0
HOLD_S: Final = 0.3  # an alarm outlives its last evidence,
_BRIEF_S = 0.01  # but for that of one message alone
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
    UNEXPECTED,  # identifiers that the profile does not know, each of which counts half after some seconds,
    UNEXPECTED_AT,  # as of then
    REASON,  # of the newest evidence, and the identifier that it speaks against
    SUSPECT,
    IS_BRIEF,  # the alarm is of single messages alone
) = range(21)
NUM_BUS = 21


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
def weigh(known: NDArray[np.float64], bus: NDArray[np.float64], now: float, reason: int, weight: float) -> None:
    """Add evidence to what there is against an identifier; enough of it begins an alarm, more keeps it."""
    need = _NEED_OF_TIMES if reason <= EXTRA else NEED
    half_s = _HALF_S + _HALF_INTERVALS * known[habit.USUAL]
    faded = 0.0
    if known[habit.EVIDENCE] > 0.0:  # from the beginning there is none, as of no time
        faded = known[habit.EVIDENCE] * 2.0 ** (-(now - known[habit.EVIDENCE_AT]) / half_s)
    known[habit.EVIDENCE], known[habit.EVIDENCE_AT] = min(faded + weight, 3.0 * need), now
    if known[habit.EVIDENCE] >= need or bus[IS_ON] != 0.0:
        is_brief = reason & KIND_OF_REASON in (JUMP, MANY_BITS, NEW)
        bus[IS_BRIEF] = 1.0 if is_brief and (bus[IS_ON] == 0.0 or bus[IS_BRIEF] != 0.0) else 0.0
        bus[IS_ON], bus[LAST_EVIDENCE] = 1.0, max(bus[LAST_EVIDENCE], now - HOLD_S + _BRIEF_S if is_brief else now)


@njit(cache=True)
def count_unexpected(bus: NDArray[np.float64], now: float, most: float) -> bool:
    """Count an identifier that the profile does not know; return whether there are more than it may have missed."""
    bus[UNEXPECTED] = bus[UNEXPECTED] * 2.0 ** (-(now - bus[UNEXPECTED_AT]) / UNEXPECTED_HALF_S) + 1.0
    bus[UNEXPECTED] = min(bus[UNEXPECTED], 2.0 * most)  # no flood makes all that follows suspicious for long
    bus[UNEXPECTED_AT] = now
    return bool(bus[UNEXPECTED] > most)
