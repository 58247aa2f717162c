"""The arrival clock: what conforms teaches it, what does not is early, overdue or out of step."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdgat.canbus.features.clock import Arrivals, ClockState, arrivals
from kdgat.canbus.features.intervals import ARRIVAL_FEATURES
from kdgat.canbus.features.memory import IdentifierNumbers
from kdgat.canbus.features.timer import REST

COLUMN = {name: column for column, name in enumerate(ARRIVAL_FEATURES)}
PERIOD_S = 0.01


def _sent(duration_s: float, period_s: float = PERIOD_S, jitter: float = 0.01, seed: int = 0) -> NDArray[np.float64]:
    """Draw when a control unit's timer sends one identifier."""
    random = np.random.default_rng(seed)
    slots = np.arange(0.0, duration_s, period_s)
    return np.maximum.accumulate(slots + random.normal(0.0, jitter * period_s, len(slots)))


def _arrivals(time: NDArray[np.float64], owner: NDArray[np.int32], stops: NDArray[np.int64]) -> Arrivals:
    identifier = owner.astype(np.uint32)
    return arrivals(time, identifier, IdentifierNumbers().number(identifier), stops)


def _judge(*times: NDArray[np.float64], size: int = 20) -> tuple[Arrivals, NDArray[np.int32], NDArray[np.float64]]:
    """Judge the traffic of several identifiers; also return whose each message is, and when it came."""
    owner = np.concatenate([np.full(len(part), number, np.int32) for number, part in enumerate(times)])
    time = np.concatenate(times)
    order = np.argsort(time, kind="stable")
    stops = np.arange(size, len(time) + 1, size)
    return _arrivals(time[order], owner[order], stops), owner[order], time[order]


def test_regular_traffic_is_neither_early_nor_overdue_nor_out_of_step() -> None:
    found, _, time = _judge(_sent(20.0), _sent(20.0, 0.03, seed=1))
    later = found.features[time > 2.0]
    assert (later[:, COLUMN["regular"]] == 1.0).all()
    assert later[:, COLUMN["early"]].max() < 0.3
    assert later[:, COLUMN["overdue"]].max() < 0.3
    assert later[:, COLUMN["phase_run"]].max() < np.log2(1 + 3) / 8
    assert not len(found.waiting)


def test_an_extra_message_is_early_and_teaches_nothing() -> None:
    own = _sent(20.0)
    extra = np.arange(10.0, 15.0, 0.1) + 0.4 * PERIOD_S
    time = np.sort(np.concatenate([own, extra]))
    found, _, time = _judge(time)
    is_extra = np.isin(time, extra)
    early = found.features[:, COLUMN["early"]]
    assert (early[is_extra] > 0.5).all()
    after = (time > 15.1) & ~is_extra
    assert early[after].max() < 0.3  # the victim's own interval is still what is usual


def test_a_silenced_identifier_is_waited_for_until_it_is_gone() -> None:
    own = _sent(60.0, seed=2)
    own = own[(own < 10.0) | (own > 50.0)]
    other = _sent(60.0, 0.005, seed=3)
    found, owner, time = _judge(own, other)
    window_end = time[np.arange(20, len(time) + 1, 20) - 1][found.waiting_window]
    assert (found.waiting_id == 0).all()
    assert ((window_end > 10.0) & (window_end < 50.0)).all()
    assert window_end.min() < 10.0 + 20 * 0.005 + 2 * PERIOD_S  # the first window that ends later
    assert len(window_end) > 0.95 * 30.0 / (20 * 0.005)  # half a minute long, all of them
    assert window_end.max() < 10.0 + 30.1  # then it is no news any more
    back = np.flatnonzero((owner == 0) & (time > 50.0))[0]
    assert found.features[back, COLUMN["overdue"]] > 5.0
    assert found.features[back, COLUMN["overdue_novelty"]] > 0.5
    assert found.features[back, COLUMN["missed"]] > 1.0


def test_one_that_came_later_is_gone_after_some_periods() -> None:
    other, late = _sent(60.0, 0.005, seed=3), _sent(20.0, seed=2) + 8.0
    found, _, time = _judge(other, late)
    window_end = time[np.arange(20, len(time) + 1, 20) - 1][found.waiting_window]
    assert set(found.waiting_id) == {1}
    assert window_end.min() > 28.0
    assert window_end.max() < 28.0 + 33 * 2 * PERIOD_S


def test_a_survivor_of_a_partial_suppression_is_overdue_and_remembers_what_was_missed() -> None:
    own = _sent(20.0, seed=4)
    lost = (own > 10.0) & (own < 11.0) & (np.arange(len(own)) % 3 != 0)
    found, owner, time = _judge(own[~lost], _sent(20.0, 0.005, seed=5))
    survivors = (owner == 0) & (time > 10.1) & (time < 11.0)
    assert (found.features[survivors, COLUMN["overdue"]] > 1.0).all()
    assert found.features[survivors, COLUMN["missed"]].min() > 0.4
    later = (owner == 0) & (time > 11.5)
    assert found.features[later, COLUMN["missed"]].max() < 0.05


def test_a_sender_that_takes_over_keeps_the_period_but_not_the_phase() -> None:
    own = _sent(20.0, seed=6)
    forged = own[(own >= 10.0) & (own < 13.0)] + 0.3 * PERIOD_S
    time = np.sort(np.concatenate([own[(own < 10.0) | (own >= 13.0)], forged]))
    found, _, time = _judge(time)
    is_forged = np.isin(time, forged)
    phase = found.features[:, COLUMN["phase"]]
    assert np.median(phase[is_forged]) > 2.0
    assert found.features[is_forged, COLUMN["phase_run"]].max() > np.log2(100) / 8
    assert np.median(phase[(time > 13.1)]) < 0.0  # the timer was not moved by the forger
    assert found.features[is_forged, COLUMN["early"]].max() < 0.6  # at most the first one is early


def test_an_identifier_without_a_habit_is_not_judged() -> None:
    times = np.cumsum(np.random.default_rng(7).exponential(PERIOD_S, 2000))
    found, _, _ = _judge(times)
    assert (found.features[:, COLUMN["regular"]] == 0.0).all()
    assert (found.features[:, COLUMN["early"]] == REST).all()
    assert not len(found.waiting)


def test_a_flood_that_ends_is_not_waited_for() -> None:
    flood = np.arange(5.0, 5.5, 0.0005)
    found, _, _ = _judge(_sent(20.0), flood)
    assert 1 not in found.waiting_id


def test_a_new_period_is_learned_as_a_new_habit() -> None:
    time = np.concatenate([_sent(5.0), 5.0 + _sent(140.0, 0.3 * PERIOD_S, seed=8)])
    found, _, time = _judge(time)
    early = found.features[:, COLUMN["early"]]
    assert early[(time > 5.0) & (time < 5.05)].max() > 0.5
    assert early[time > 126.0].max() < 0.3


@settings(deadline=None, max_examples=25)
@given(cuts=st.lists(st.integers(0, 900), max_size=4), seed=st.integers(0, 50))
def test_chunks_are_judged_as_the_whole_is(cuts: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    time = np.sort(np.concatenate([_sent(5.0, seed=seed), _sent(5.0, 0.02, seed=seed + 1), random.uniform(0, 5, 150)]))
    owner = random.integers(0, 3, len(time)).astype(np.int32)
    whole = _arrivals(time, owner, np.zeros(0, np.int64))
    state, numbers = ClockState(), IdentifierNumbers()
    borders = [0, *sorted(min(cut, len(time)) for cut in cuts), len(time)]
    parts = [
        arrivals(
            time[a:b],
            owner[a:b].astype(np.uint32),
            numbers.number(owner[a:b].astype(np.uint32)),
            np.zeros(0, np.int64),
            state,
        ).features
        for a, b in pairwise(borders)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole.features)


def test_no_message_is_nothing() -> None:
    found = _arrivals(np.zeros(0), np.zeros(0, np.int32), np.zeros(0, np.int64))
    assert found.features.shape == (0, len(ARRIVAL_FEATURES))
    assert not len(found.waiting_window)
