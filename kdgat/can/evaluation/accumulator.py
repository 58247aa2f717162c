"""Evidence that adds up, window by window, in one pass: `kdgat.can.evaluation.accumulation` says what is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kdgat.base.machine_code import njit
from kdgat.can.evaluation.accumulation import NUM_LEVELS, Accumulation

BLOCK_S: Final = 0.4
EXPONENT: Final = 0.5  # of the bet of a block, for blocks depend on their neighbours
STAKE: Final = 0.5  # of a bet; the rest is kept
PRIOR_NODES: Final = 20.0  # of its recording, which an identifier's own past begins with
LONGEST_S: Final = 1.0  # of a window: in a gap no evidence could have come
HALF_LIFE_S: Final = 60.0  # of an identifier's own past: what vehicles do drifts
DOUBT_S: Final = 1.0  # of M, from which evidence waits before it is taken for a habit
PATIENCE_S: Final = 60.0  # that it waits
AT_REST: Final = 3.0  # blocks of seconds; M stays at 2.4 while nothing is evidence
HOLD_S: Final = 1.0  # that an alarm goes on without more evidence
MAX_IDENTIFIERS: Final = 4096  # of a recording, the first ones: an attacker may use any number
MAX_NAMED: Final = 5  # identifiers of one window


class Accumulated(NamedTuple):
    """What has added up by the end of each of G windows; M identifiers are named of each at most, the strongest first.

    Places without one hold -1 in `identifier`.
    """

    is_alarm: NDArray[np.bool_]  # [G]
    identifier: NDArray[np.int64]  # [G, M]
    since_s: NDArray[np.float64]  # [G, M] on the bus: when its evidence began
    num_windows: NDArray[np.int64]  # [G, M] that were evidence since


@dataclass
class _State:
    """What is known of each identifier, by its place."""

    evidence: NDArray[np.float64]  # M, in seconds
    since: NDArray[np.float64]
    hits: NDArray[np.int64]  # windows that were evidence since
    last_hit: NDArray[np.float64]
    raised: NDArray[np.float64]  # when its alarm began; infinity: none
    habit_time: NDArray[np.float64]  # when evidence last became habit
    block: NDArray[np.float64]  # [I, 4] begin, sum of bets, number of bets, seconds
    own: NDArray[np.float64]  # [I, levels + 1] how many windows reached each level, in its past
    waiting: NDArray[np.float64]  # [I, levels + 1] not yet of the past
    recording: NDArray[np.float64]  # [levels + 1] of all identifiers

    @classmethod
    def new(cls) -> _State:
        shape, levels = MAX_IDENTIFIERS, NUM_LEVELS + 1
        block = np.zeros((shape, 4))
        block[:, 0] = -np.inf
        return cls(
            np.zeros(shape), np.zeros(shape), np.zeros(shape, np.int64), np.full(shape, -np.inf),
            np.full(shape, np.inf), np.zeros(shape), block, np.zeros((shape, levels)), np.zeros((shape, levels)),
            np.zeros(levels),
        )  # fmt: skip


class Accumulator:
    """Add up the evidence of one recording, window by window; memory and time do not grow with it."""

    def __init__(self, accumulation: Accumulation) -> None:
        """Begin with no evidence."""
        self._reference = accumulation.reference
        self._shares = np.array([1.0, *accumulation.reference.shares])
        self._limit_s = 3600.0 * accumulation.hours_between_false_episodes
        self._state = _State.new()
        self._places: dict[int, int] = {}
        self._identifiers = np.full(MAX_IDENTIFIERS, -1, np.int64)
        self._last_s: float | None = None

    def add(
        self,
        start_time: NDArray[np.float64],
        end_time: NDArray[np.float64],
        node_ptr: NDArray[np.int64],
        node_id: NDArray[np.int32],
        node_score: ArrayLike,
    ) -> Accumulated:
        """Take the next G windows with N nodes.

        Args:
            start_time: [G] s.
            end_time: [G] s.
            node_ptr: [G + 1] first node of each window.
            node_id: [N] arbitration ids.
            node_score: [N] what the network says of each; the mean over its members.
        """
        num_windows = len(end_time)
        named = np.full((num_windows, MAX_NAMED), -1, np.int64)
        since, hits = np.zeros((num_windows, MAX_NAMED)), np.zeros((num_windows, MAX_NAMED), np.int64)
        is_alarm = np.zeros(num_windows, np.bool_)
        if num_windows:
            if self._last_s is None:
                self._last_s = float(start_time[0])
            state = self._state
            self._last_s = _accumulate(
                np.asarray(end_time, np.float64), np.asarray(node_ptr, np.int64), self._placed(np.asarray(node_id)),
                self._reference.levels(node_score), self._shares, self._limit_s, self._last_s, len(self._places),
                state.evidence, state.since, state.hits, state.last_hit, state.raised, state.habit_time, state.block,
                state.own, state.waiting, state.recording, is_alarm, named, since, hits,
            )  # fmt: skip
        identifier = np.where(named >= 0, self._identifiers[named], -1)
        return Accumulated(is_alarm, identifier, since, hits)

    def _placed(self, node_id: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the place [N] of each node's identifier; -1 for one that came too late to have one."""
        unique, inverse = np.unique(node_id.view(np.uint32), return_inverse=True)
        places = np.empty(len(unique), np.int64)
        for index, identifier in enumerate(unique.tolist()):
            place = self._places.get(identifier)
            if place is None and len(self._places) < MAX_IDENTIFIERS:
                place = self._places[identifier] = len(self._places)
                self._identifiers[place] = identifier
            places[index] = -1 if place is None else place
        return places[inverse]


@njit(cache=True)
def bet_of(share: float) -> float:
    """Return what a bet on small p-values pays: the mean of k p^(k - 1) over k in 0 to 1, whose integral is one.

    >>> round(bet_of(0.001), 2), round(bet_of(1.0), 2)
    (20.79, 0.5)
    """
    if share > 0.9999:
        return 0.5
    logarithm = np.log(share)
    return (1.0 - share + share * logarithm) / (share * logarithm * logarithm)


@njit(cache=True)
def _bet(level, shares, own, recording):  # type: ignore[no-untyped-def]
    """Return the bet of evidence of a level, 1 to NUM_LEVELS, against reference, recording and own past."""
    at_level = at_any = total = 0.0
    own_at_level = own_at_any = own_total = 0.0
    for other in range(len(shares)):
        total += recording[other]
        own_total += own[other]
        if other >= 1:
            at_any += recording[other]
            own_at_any += own[other]
        if other >= level:
            at_level += recording[other]
            own_at_level += own[other]
    of_level, of_any = (1.0 + at_level) / (1.0 + total), (1.0 + at_any) / (1.0 + total)
    own_of_level = (own_at_level + PRIOR_NODES * of_level) / (own_total + PRIOR_NODES)
    own_of_any = (own_at_any + PRIOR_NODES * of_any) / (own_total + PRIOR_NODES)
    share = max(shares[level], of_level, own_of_level)
    any_share = max(shares[1], of_any, own_of_any)
    return bet_of(share / any_share) / any_share


@njit(cache=True)
def _remember(own, waiting, recording, seconds):  # type: ignore[no-untyped-def]
    """Take the evidence that has waited so long for the past of its identifier, which fades, and of the recording."""
    kept = 0.5 ** (max(seconds, 0.0) / HALF_LIFE_S)
    for level in range(len(waiting)):
        own[level] = own[level] * kept + waiting[level]
        recording[level] += waiting[level]
        waiting[level] = 0.0


@njit(cache=True)
def _accumulate(  # type: ignore[no-untyped-def]
    end_time, node_ptr, places, levels, shares, limit_s, last_s, num_places,
    evidence, since, hits, last_hit, raised, habit_time, block, own, waiting, recording,
    is_alarm, named, named_since, named_hits,
):  # fmt: skip
    """Go through windows; return the latest time."""
    for window in range(len(end_time)):
        now = end_time[window]
        num_nodes = node_ptr[window + 1] - node_ptr[window]
        seconds = min(max(now - last_s, 0.0), LONGEST_S) / max(num_nodes, 1)
        last_s = max(now, last_s)
        now = last_s  # time stamps may run backwards
        for node in range(node_ptr[window], node_ptr[window + 1]):
            place = places[node]
            if place < 0:
                continue
            if now - block[place, 0] >= BLOCK_S:
                if block[place, 2] > 0.0:
                    if evidence[place] < AT_REST * block[place, 3]:
                        since[place], hits[place] = block[place, 0], 0
                    bet = (block[place, 1] / block[place, 2]) ** EXPONENT
                    evidence[place] = (evidence[place] + block[place, 3]) * bet
                    if evidence[place] >= limit_s:
                        evidence[place] = 0.0  # what comes after has to add up again
                        if raised[place] == np.inf:
                            raised[place] = now
                    is_habit = now - habit_time[place] > PATIENCE_S
                    if raised[place] < np.inf:
                        if is_habit and now - raised[place] > PATIENCE_S:
                            raised[place] = np.inf
                        else:
                            is_habit = False
                    elif evidence[place] < DOUBT_S:
                        is_habit = True
                    if is_habit:
                        _remember(own[place], waiting[place], recording, now - habit_time[place])
                        habit_time[place] = now
                block[place, 0], block[place, 1], block[place, 2], block[place, 3] = now, 0.0, 0.0, 0.0
            level = levels[node]
            paid = 1.0 - STAKE
            if level > 0:
                paid += STAKE * _bet(level, shares, own[place], recording)
                last_hit[place] = now
                hits[place] += 1
            waiting[place, level] += 1.0
            block[place, 1] += paid
            block[place, 2] += 1.0
            block[place, 3] += seconds
        count = 0
        for place in range(num_places):
            if raised[place] == np.inf:
                continue
            if now - last_hit[place] > HOLD_S:  # over: the next of its alarms takes rarer evidence, or more of it
                raised[place] = np.inf
                _remember(own[place], waiting[place], recording, now - habit_time[place])
                habit_time[place] = now
                continue
            is_alarm[window] = True
            if count < MAX_NAMED:
                named[window, count], named_since[window, count] = place, since[place]
                named_hits[window, count] = hits[place]
                count += 1
    return last_s
