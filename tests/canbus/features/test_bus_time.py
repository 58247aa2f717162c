"""Time on the bus: time stamps that are far off blind nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kdgat.canbus import Messages, WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.features.bus_time import AGREEING, RESUMED, UNTIMED, BusClock
from kdgat.canbus.simulation import AttackKind
from tests.canbus.traffic import largest

REGULAR = np.arange(0.0, 20.0, 0.5)


@cache
def _suppressed() -> Messages:
    return simulate(make_vehicle(1041), 40.0, AttackKind.SUPPRESSION, seed=4)


def _overdue(messages: Messages) -> NDArray[np.bool_]:
    return largest(windows_to_graphs(messages, WindowConfig()), "overdue_maximum") > 0.7


def test_time_stamps_that_go_on_are_time_on_the_bus() -> None:
    stamps = np.array([5.0, 5.1, 5.05, 5.4, 5.0, 9.0, 9.1])  # small steps back, and a pause
    read = BusClock().read(stamps)
    assert (read.time == stamps).all()
    assert not read.breaks.any()


@pytest.mark.parametrize("stamp", [1e3, 1e9, -1e3])
def test_a_single_one_that_is_far_off_is_not_believed(stamp: float) -> None:
    stamps = REGULAR.copy()
    stamps[20] = stamp
    read = BusClock().read(stamps)
    assert read.time[20] == REGULAR[19]
    assert (np.delete(read.time, 20) == np.delete(REGULAR, 20)).all()
    assert np.flatnonzero(read.breaks).tolist() == [20]
    assert read.breaks[20] == UNTIMED


def test_a_pause_is_believed_as_soon_as_several_messages_agree() -> None:
    stamps = REGULAR.copy()
    stamps[20:] += 3600.0
    read = BusClock().read(stamps)
    first = 20 + AGREEING - 1
    assert (read.breaks[20:first] == UNTIMED).all()
    assert (read.time[first:] == stamps[first:]).all()
    assert not read.breaks[first:].any()
    assert (np.diff(read.awake) >= 0.0).all()
    assert read.awake[-1] == pytest.approx(REGULAR[-1], abs=0.5), "habits are measured by time without pauses"


def test_after_a_step_back_time_goes_on_from_where_it_was() -> None:
    stamps = REGULAR.copy()
    stamps[20:] -= 3600.0
    read = BusClock().read(stamps)
    assert read.breaks[20 : 20 + AGREEING].tolist() == [UNTIMED] * (AGREEING - 1) + [RESUMED]
    assert (np.diff(read.time) >= 0.0).all()
    assert read.time[-1] == pytest.approx(REGULAR[19] + REGULAR[-1] - REGULAR[20])


def _busy(num: int = 20_000) -> NDArray[np.float64]:
    """Return when messages come on a bus with 1,000 of them a second."""
    return 1.7e9 + np.cumsum(np.random.default_rng(3).gamma(2.0, 0.0005, num))


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("off_s", [0.3, 0.9, 6.0, 9.0, 3600.0, -0.3, -0.9, -6.0, -9.0, -3600.0])
def test_a_minority_of_time_stamps_moves_nothing(share: float, off_s: float) -> None:
    stamps = _busy()
    is_off = np.random.default_rng(4).random(len(stamps)) < share
    is_off[:40] = False
    read = BusClock().read(np.where(is_off, stamps + off_s, stamps))
    assert (read.time[~is_off] == stamps[~is_off]).all()
    assert (read.breaks == np.where(is_off, UNTIMED, 0)).all()
    latest = np.maximum.accumulate(np.where(is_off, -np.inf, stamps))
    assert (read.time[is_off] == latest[is_off]).all()
    assert (read.log_time == read.time).all()  # whose clock is the log's: none that has not been believed


@pytest.mark.parametrize("run", [1, 2, 3])
@pytest.mark.parametrize("first", [0, 1, 50])
def test_messages_without_a_time_move_nothing(run: int, first: int) -> None:
    stamps = _busy(3000)
    damaged = stamps.copy()
    for place in range(run):
        damaged[first + place :: 30] = 0.0
    read = BusClock().read(damaged)
    is_timed = (damaged > 0.0) & (np.arange(len(stamps)) >= 2 * AGREEING)
    offset = read.time[is_timed] - stamps[is_timed]
    assert np.ptp(offset) < 1e-6  # if the log begins with one, time begins there
    assert read.time[-1] - read.time[0] < 1.01 * (stamps[-1] - stamps[0])
    np.testing.assert_array_equal(read.log_time[is_timed], stamps[is_timed])


@pytest.mark.parametrize("steps_s", [[-0.3], [-0.8], [-5.0], [-3600.0], [-3600.0, -0.8, -5.0], [1e9]])
def test_a_step_of_the_clock_costs_the_messages_around_it_and_no_time(steps_s: list[float]) -> None:
    stamps = _busy()
    moved = stamps.copy()
    for step, step_s in enumerate(steps_s):
        moved[5000 * (step + 1) :] += step_s
    read = BusClock().read(moved)
    assert np.count_nonzero(read.breaks) == AGREEING * len(steps_s)
    assert (np.diff(read.time) >= 0.0).all()
    assert read.time[-1] - read.time[0] == pytest.approx(stamps[-1] - stamps[0], abs=0.01 * len(steps_s))
    is_timed = read.breaks != UNTIMED
    np.testing.assert_array_equal(read.log_time[is_timed], moved[is_timed])


@pytest.mark.parametrize("gap_s", [0.2, 1.0, 10.0, 15.0, 45.0])
@pytest.mark.parametrize("num_busy", [0, 2000])
def test_a_slow_bus_is_believed_to_be_slow(gap_s: float, num_busy: int) -> None:
    """From its beginning, or from when all units but one sleep."""
    busy = _busy(num_busy)
    stamps = np.concatenate([busy, (busy[-1] if num_busy else 0.0) + gap_s * np.arange(1.0, 101.0)])
    read = BusClock().read(stamps)
    later = slice(num_busy + AGREEING + 1, None)
    assert not read.breaks[later].any()
    np.testing.assert_allclose(np.diff(read.time[later]), gap_s, rtol=1e-6)


@pytest.mark.parametrize("silence_s", [0.3, 1.0, 5.0])
def test_a_bus_that_sends_in_bursts_is_believed_to_do_so(silence_s: float) -> None:
    stamps = (silence_s * np.arange(40.0)[:, None] + 0.001 * np.arange(20.0)).ravel()
    read = BusClock().read(stamps)
    assert not read.breaks[200:].any()
    assert (read.time[200:] == stamps[200:]).all()


def test_a_time_stamp_ahead_among_the_first_ones_moves_nothing() -> None:
    stamps = _busy(1000)
    ahead = stamps.copy()
    ahead[[5, 12, 25]] += 6.0
    read = BusClock().read(ahead)
    assert np.flatnonzero(read.breaks).tolist() == [5, 12, 25]
    assert read.time[-1] == stamps[-1]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_time_stands_still_where_a_log_ends_before_a_step_is_believed(step_s: float) -> None:
    stamps = _busy(1000)
    stamps[-5:] += step_s
    read = BusClock().read(stamps)
    assert (read.time[-5:] == stamps[-6]).all()
    assert (read.breaks[-5:] == UNTIMED).all()


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e4, 1e4).filter(lambda stamp: stamp == 0.0 or abs(stamp) > 1e-6), max_size=30),
    st.integers(0, 30),
)
def test_pieces_have_the_time_of_the_whole(stamps: list[float], cut: int) -> None:
    whole = np.array(stamps, np.float64)
    clock = BusClock()
    parts = [clock.read(whole[:cut]), clock.read(whole[cut:])]
    read = BusClock().read(whole)
    for name in ("time", "log_time", "awake", "breaks"):
        np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts]), getattr(read, name))


@pytest.mark.parametrize("damage", ["far ahead", "far back", "set back", "set ahead"])
def test_a_damaged_time_stamp_hides_no_attack_and_is_none(damage: str) -> None:
    messages = _suppressed()
    plain = _overdue(messages)
    assert plain.sum() > 20
    begin_s = min(campaign.begin_s for campaign in messages.campaigns)
    row = int(0.8 * np.searchsorted(messages.timestamp, begin_s))  # before the attack begins
    stamps: Any = messages.timestamp.copy()
    if damage.startswith("far"):
        stamps[row] += 1000.0 if damage == "far ahead" else -1000.0
    else:
        stamps[row:] += 500.0 if damage == "set ahead" else -500.0
    found = _overdue(replace(messages, timestamp=stamps, campaigns=()))
    windows = slice(row // 100 - 1, row // 100 + 2)
    assert not found[windows].any()
    assert found.sum() >= 0.9 * plain.sum()
    assert (found & ~plain).sum() <= 2


@pytest.mark.parametrize("pause_s", [2.0, 40.0, 3600.0])
@pytest.mark.parametrize("kind", [AttackKind.DOS, AttackKind.FUZZING, AttackKind.REPLAY])
def test_an_attack_after_a_pause_is_found_as_one_without(kind: AttackKind, pause_s: float) -> None:
    messages = simulate(make_vehicle(1041), 40.0, kind, seed=4)
    begin_s = min(campaign.begin_s for campaign in messages.campaigns)
    row = int(0.8 * np.searchsorted(messages.timestamp, begin_s)) // 100 * 100  # before the attack begins
    stamps = messages.timestamp.copy()
    stamps[row:] += pause_s
    paused = replace(messages, timestamp=stamps, campaigns=())
    plain, found = (
        largest(windows_to_graphs(one, WindowConfig()), "early_maximum") > 1.0 for one in (messages, paused)
    )
    assert plain.sum() > 20
    assert (plain & ~found).sum() <= 2
    assert (found & ~plain).sum() <= 2
