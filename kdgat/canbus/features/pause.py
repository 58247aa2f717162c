"""Pauses of the whole bus: the log was not written, or the car stood still with its engine off.

When many identifiers that were in time fall silent at once, nobody keeps any single one off the bus.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base.machine_code import njit

_USUAL_GAPS = 10.0  # a silence that is no longer than so many usual gaps between messages is none
_MEMORY = 256.0  # gaps that the usual one is taken over
_FEWEST_LATE = 3  # identifiers that should have come meanwhile,
_LATE_SHARE = 0.5  # of those that were in time before
_LATE = 1.23  # longest usual intervals: whoever is silent for longer should have come

# Columns of the state of the bus.
_LATEST, _GAP, _NUM_GAPS, RESUMED = range(4)
NUM_PAUSE_STATE: Final = 4


@njit(cache=True)
def is_long_silence(bus: NDArray[np.float64], now: float) -> bool:
    """Say whether nothing came for unusually long before a message; learn what is usual if not."""
    if bus[_NUM_GAPS] == 0.0:
        bus[_LATEST], bus[_NUM_GAPS] = now, 1.0
        bus[RESUMED] = -np.inf
        return False
    gap = now - bus[_LATEST]
    if bus[_NUM_GAPS] > _MEMORY / 8.0 and gap > _USUAL_GAPS * bus[_GAP]:
        return True
    bus[_GAP] += (gap - bus[_GAP]) / min(bus[_NUM_GAPS], _MEMORY)
    bus[_NUM_GAPS] += 1.0
    bus[_LATEST] = now
    return False


@njit(cache=True)
def end_silence(
    bus: NDArray[np.float64],
    now: float,
    last: NDArray[np.float64],
    longest: NDArray[np.float64],
    regular: NDArray[np.int32],
) -> None:
    """Decide whether the silence that a message ends was a pause of the bus, which goes on from that message then.

    Args:
        bus: [NUM_PAUSE_STATE].
        now: s, of the message.
        last: s [I], when each identifier came last.
        longest: s [I], its longest usual interval.
        regular: [R] which of them are regular.
    """
    were_in_time, are_late = 0, 0
    for place in regular:
        waited_since = max(last[place], bus[RESUMED])
        if bus[_LATEST] - waited_since <= _LATE * longest[place]:
            were_in_time += 1
            are_late += now - waited_since > _LATE * longest[place]
    if are_late >= _FEWEST_LATE and are_late >= _LATE_SHARE * were_in_time:
        bus[RESUMED] = now
    bus[_LATEST] = now
