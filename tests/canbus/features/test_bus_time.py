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
from kdgat.canbus.features.bus_time import RESUMED, UNTIMED, BusClock
from kdgat.canbus.simulation import AttackKind

REGULAR = np.arange(0.0, 20.0, 0.5)


@cache
def _suppressed() -> Messages:
    return simulate(make_vehicle(1041), 40.0, AttackKind.SUPPRESSION, seed=4)


def _overdue(messages: Messages) -> NDArray[np.bool_]:
    return np.asarray(windows_to_graphs(messages, WindowConfig())["overdue"] > 1.0)


def test_time_stamps_that_go_on_are_time_on_the_bus() -> None:
    stamps = np.array([5.0, 5.1, 5.05, 5.4, 4.6, 9.0, 9.1])  # small steps back, and a pause
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


def test_a_pause_is_believed_at_its_second_message() -> None:
    stamps = REGULAR.copy()
    stamps[20:] += 3600.0
    read = BusClock().read(stamps)
    assert read.breaks[20] == UNTIMED
    assert (read.time[21:] == stamps[21:]).all()
    assert not read.breaks[21:].any()


def test_after_a_step_back_time_goes_on_from_where_it_was() -> None:
    stamps = REGULAR.copy()
    stamps[20:] -= 3600.0
    read = BusClock().read(stamps)
    assert read.breaks[20:22].tolist() == [UNTIMED, RESUMED]
    assert (np.diff(read.time) >= 0.0).all()
    assert read.time[-1] == pytest.approx(REGULAR[19] + REGULAR[-1] - REGULAR[21])


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
    for name in ("time", "breaks"):
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
