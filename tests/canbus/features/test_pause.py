"""Pauses of the whole bus: a log that was not written or a car that rests is no silenced identifier."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.canbus import Messages, WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.features.bus_time import LONGEST_GRACE_S, NUM_PAUSE_STATE, RESUMED_AT, end_silence, is_long_silence
from kdgat.graphs import GraphColumns
from tests.canbus.traffic import largest

OVERDUE_BOUND, EARLY_BOUND = 0.7, 0.6


@cache
def _drive() -> Messages:
    return simulate(make_vehicle(1041), 60.0, None, seed=4)


def _with_pauses(messages: Messages, how: str, begins: NDArray[np.float64], length_s: float) -> Messages:
    time = messages.timestamp - messages.timestamp[0]
    if how == "log not written":
        return messages.select(~((time[:, None] >= begins) & (time[:, None] < begins + length_s)).any(axis=1))
    return replace(messages, timestamp=messages.timestamp + length_s * np.searchsorted(begins, time, side="right"))


def _deviates(messages: Messages) -> NDArray[np.bool_]:
    graphs = windows_to_graphs(messages, WindowConfig())
    return _is_overdue(graphs) | (largest(graphs, "early_maximum") > EARLY_BOUND)


def _is_overdue(graphs: GraphColumns) -> NDArray[np.bool_]:
    return largest(graphs, "overdue_maximum") > OVERDUE_BOUND


@pytest.mark.parametrize("how", ["log not written", "car rests"])
@pytest.mark.parametrize("length_s", [0.3, 2.0, 1000.0])
def test_a_pause_of_the_whole_bus_makes_nobody_early_or_overdue(how: str, length_s: float) -> None:
    if how == "log not written":
        length_s = min(length_s, 5.0)
    assert not _deviates(_with_pauses(_drive(), how, np.arange(10.0, 55.0, 6.0), length_s)).any()


def test_many_pauses_do_not_turn_the_clock_off() -> None:
    paused = _with_pauses(_drive(), "car rests", np.arange(10.0, 50.0, 3.0), 2.0)
    time = paused.timestamp - paused.timestamp[0]
    identifiers, counts = np.unique(paused.identifier, return_counts=True)
    silenced = identifiers[np.argmax(counts)]
    kept = ~((paused.identifier == silenced) & (time > time[-1] - 6.0))
    assert _deviates(paused.select(kept))[-20:].all()


def test_one_silent_identifier_among_others_is_not_a_pause_of_the_bus() -> None:
    bus = np.zeros(NUM_PAUSE_STATE)
    for now in np.arange(0.0, 1.0, 0.001):
        assert not is_long_silence(bus, now)
    assert is_long_silence(bus, 1.1)
    last, longest = np.full(10, 0.995), np.full(10, 1.0)
    longest[0] = 0.01
    everyone = np.arange(10, dtype=np.int32)
    end_silence(bus, 1.1, last, longest, everyone)
    assert bus[RESUMED_AT] == -np.inf
    assert is_long_silence(bus, 1.2)
    end_silence(bus, 1.2, np.full(10, 1.1), np.full(10, 0.02), everyone)
    assert bus[RESUMED_AT] == 1.2


def test_an_identifier_that_does_not_come_back_after_a_pause_is_waited_for() -> None:
    paused = _with_pauses(_drive(), "car rests", np.array([30.0]), 5.0)
    time = paused.timestamp - paused.timestamp[0]
    identifiers, counts = np.unique(paused.identifier, return_counts=True)
    silenced = identifiers[np.argmax(counts)]
    gone = paused.select(~((paused.identifier == silenced) & (time > 30.0)))
    graphs = windows_to_graphs(gone, WindowConfig())
    start = graphs["start_time"] - gone.timestamp[0]
    is_overdue = _is_overdue(graphs)
    assert not is_overdue[start < 29.0].any()
    assert is_overdue[start > 36.0].all()


def _asleep(messages: Messages, spread_s: float, rest_s: float = 600.0) -> Messages:
    """Let the bus sleep after 30 s; its units wake one after the other."""
    time = messages.timestamp - messages.timestamp[0]
    identifiers, number = np.unique(messages.identifier, return_inverse=True)
    wakes = 30.0 + np.random.default_rng(1).permutation(np.linspace(0.0, spread_s, len(identifiers)))[number]
    awake = messages.select((time < 30.0) | (time >= wakes))
    time = awake.timestamp - messages.timestamp[0]
    return replace(awake, timestamp=awake.timestamp + rest_s * (time >= 30.0))


@pytest.mark.parametrize("spread_s", [0.0, 0.1, 0.5, 1.5])
@pytest.mark.parametrize("rest_s", [20.0, 600.0])
def test_units_that_wake_one_after_the_other_are_neither_early_nor_overdue(spread_s: float, rest_s: float) -> None:
    assert not _deviates(_asleep(_drive(), spread_s, rest_s)).any()


@pytest.mark.parametrize("spread_s", [0.0, 0.5, 1.5])
def test_an_identifier_that_does_not_wake_is_found_after_the_grace(spread_s: float) -> None:
    woken = _asleep(_drive(), spread_s)
    time = woken.timestamp - woken.timestamp[0]
    identifiers, counts = np.unique(woken.identifier, return_counts=True)
    silenced = identifiers[np.argmax(counts)]
    graphs = windows_to_graphs(woken.select((woken.identifier != silenced) | (time < 30.0)), WindowConfig())
    start, is_overdue = graphs["start_time"] - woken.timestamp[0], _is_overdue(graphs)
    assert not is_overdue[start < 29.0].any()
    assert is_overdue[start > 630.1 + LONGEST_GRACE_S].all()
    if not spread_s:  # all others are there at once
        assert is_overdue[start > 630.0 + 0.5 * LONGEST_GRACE_S].all()


def test_an_identifier_that_was_silenced_before_the_bus_slept_is_waited_for_again() -> None:
    woken = _asleep(_drive(), 0.5)
    time = woken.timestamp - woken.timestamp[0]
    identifiers, counts = np.unique(woken.identifier, return_counts=True)
    silenced = identifiers[np.argmax(counts)]
    graphs = windows_to_graphs(woken.select((woken.identifier != silenced) | (time < 25.0)), WindowConfig())
    start, end = (graphs[name] - woken.timestamp[0] for name in ("start_time", "end_time"))
    is_overdue = _is_overdue(graphs)
    assert is_overdue[(start > 25.2) & (end < 30.0)].all()
    assert is_overdue[start > 630.1 + LONGEST_GRACE_S].all()


def test_pauses_that_are_long_ago_are_forgotten() -> None:
    """One identifier that pauses for itself is no longer waited for; an hour later it is again."""
    drive = _drive()
    time = drive.timestamp - drive.timestamp[0]
    identifiers, counts = np.unique(drive.identifier, return_counts=True)
    pausing = identifiers[np.argmax(counts)]
    is_pause = (time > 10.0) & (time % 3.0 < 0.2) & (time < 50.0)
    first = drive.select(~((drive.identifier == pausing) & is_pause))
    both = replace(
        first,
        timestamp=np.concatenate([first.timestamp, first.timestamp + 4000.0]),
        identifier=np.tile(first.identifier, 2),
        payload=np.tile(first.payload, (2, 1)),
        length=np.tile(first.length, 2),
        label=np.tile(first.label, 2),
    )
    graphs = windows_to_graphs(both, WindowConfig())
    start, is_overdue = graphs["start_time"] - first.timestamp[0], _is_overdue(graphs)
    assert is_overdue[start < 30.0].any()
    assert not is_overdue[(start > 40.0) & (start < 60.0)].any()  # a habit by then
    assert is_overdue[(start > 4010.0) & (start < 4050.0)].any()


def test_by_timestamps_of_whole_seconds_nobody_is_early_or_overdue() -> None:
    drive = _drive()
    assert not _deviates(replace(drive, timestamp=np.floor(drive.timestamp))).any()
