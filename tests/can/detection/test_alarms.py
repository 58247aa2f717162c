"""Alarms of logs whose clock is wrong: minorities of time stamps move nothing, a step costs the windows around it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from kdgat.can.detection.alarms import Alarm
from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.output import AlarmWriter
from kdgat.can.detection.watch import Watch
from kdgat.canbus import Messages, make_vehicle, simulate
from tests.can.detection.untrained import in_chunks

Times = NDArray[np.float64]


@cache
def _log(attack: str | None) -> Messages:
    """Simulate a drive; an identifier is injected or suppressed from 24 to 32 s."""
    drive = simulate(make_vehicle(1041), 40.0, None, seed=4)
    time = drive.timestamp - drive.timestamp[0]
    identifiers, counts = np.unique(drive.identifier, return_counts=True)
    attacked = identifiers[np.argmax(counts)]
    is_during = (time >= 24.0) & (time < 32.0)
    if attack == "suppressed":
        return drive.select(~((drive.identifier == attacked) & is_during))
    if attack == "injected":
        return _injected(drive, attacked, np.arange(24.0, 32.0, 40.0 / counts.max() / 8.0))
    return drive


def _injected(drive: Messages, identifier: int, time: Times) -> Messages:
    """Add messages at times since the begin of a drive, with the payloads of the identifier's own."""
    own = np.flatnonzero(drive.identifier == identifier)[np.arange(len(time)) % np.sum(drive.identifier == identifier)]
    order = np.argsort(np.concatenate([drive.timestamp, drive.timestamp[0] + time]), kind="stable")
    rows = np.concatenate([np.arange(len(drive)), own])[order]
    both = replace(
        drive,
        timestamp=np.concatenate([drive.timestamp, drive.timestamp[0] + time])[order],
        identifier=drive.identifier[rows],
        payload=drive.payload[rows],
        length=drive.length[rows],
        label=drive.label[rows],
    )
    assert (np.diff(both.timestamp) >= 0.0).all()
    return both


def _watched(messages: Messages) -> tuple[Watch, list[Alarm]]:
    watch = Watch(load_detector(None))
    return watch, list(watch.run(in_chunks(messages, 5000)))


def _minority(share: float, off_s: float) -> Callable[[Times], Times]:
    return lambda time: np.where(np.random.default_rng(1).random(len(time)) < share, time + off_s, time)


def _unset(run: int) -> Callable[[Times], Times]:
    return lambda time: np.where(np.arange(len(time)) % 100 < run, 0.0, time)


def _set(*steps: tuple[float, float]) -> Callable[[Times], Times]:
    """Return what a clock shows that is set by so many seconds at shares of a log."""

    def shown(time: Times) -> Times:
        off = np.zeros(len(time))
        for share, step_s in steps:
            off[int(share * len(time)) :] += step_s
        return time + off

    return shown


def _as_shown(attack: str | None, trouble: Callable[[Times], Times]) -> Messages:
    log = _log(attack)
    return replace(log, timestamp=trouble(log.timestamp))


MINORITIES = [
    _minority(share, off_s)
    for share, off_s in ((0.01, 0.3), (0.1, 0.3), (0.1, 6.0), (0.03, 3600.0), (0.1, -0.9), (0.03, -9.0))
]
MINORITIES += [_unset(run) for run in (1, 2, 3)]
STEPS_BACK = [_set((share, step_s)) for share in (0.4, 0.7, 0.9) for step_s in (-0.3, -0.8, -3600.0)]
STEPS_BACK += [_set((0.2, -5.0), (0.65, -0.8), (0.7, -3600.0), (0.9, -1.0))]


@pytest.mark.parametrize("trouble", [*MINORITIES, *STEPS_BACK])
@pytest.mark.parametrize("attack", ["injected", "suppressed"])
def test_the_alarms_of_a_log_whose_clock_is_wrong_are_those_of_the_bus(
    attack: str, trouble: Callable[[Times], Times]
) -> None:
    _, expected = _watched(_log(attack))
    watch, found = _watched(_as_shown(attack, trouble))
    assert len(found) == len(expected) == 1
    assert sum(one.num_windows for one in found) >= 0.9 * sum(one.num_windows for one in expected)
    for one, other in zip(found, expected, strict=True):
        assert one.duration_s == pytest.approx(other.duration_s, abs=0.5)
    assert watch.summary.duration_s == pytest.approx(_log(attack).duration_s, abs=0.1)


@pytest.mark.parametrize("trouble", MINORITIES)
def test_a_minority_of_time_stamps_is_no_alarm(trouble: Callable[[Times], Times]) -> None:
    assert _watched(_as_shown(None, trouble))[1] == []


@pytest.mark.parametrize("step_s", [-3600.0, -5.0, -0.8, -0.3, 0.5, 5.0, 40.0, 3600.0])
def test_a_step_of_the_clock_in_clean_traffic_is_no_alarm(step_s: float) -> None:
    assert _watched(_as_shown(None, _set((0.5, step_s))))[1] == []


@pytest.mark.parametrize("step_s", [0.5, 5.0, 40.0, 3600.0])
@pytest.mark.parametrize("share", [0.4, 0.7, 0.9])
@pytest.mark.parametrize(("attack", "least"), [("suppressed", 0.6), ("injected", 0.9)])
def test_a_clock_that_is_set_ahead_takes_no_alarm(attack: str, least: float, step_s: float, share: float) -> None:
    """It cannot be told from a pause: what goes on meanwhile is longer by it, or two alarms.

    To the habits of identifiers a silence of five seconds is news, pauses included.
    """
    _, expected = _watched(_log(attack))
    _, found = _watched(_as_shown(attack, _set((share, step_s))))
    assert len(expected) == 1
    assert len(found) in (1, 2)
    assert sum(one.num_windows for one in found) >= least * expected[0].num_windows


def test_an_alarm_ends_when_it_does_though_the_clock_was_set_back_meanwhile() -> None:
    log, watch = _as_shown("injected", _set((0.7, -3600.0))), Watch(load_detector(None))
    ended_at = [row for row in range(0, len(log), 100) if watch.feed(log.select(slice(row, row + 100)))]
    time = _log("injected").timestamp - log.timestamp[0]
    assert [time[row] for row in ended_at] == [pytest.approx(33.3, abs=0.25)]


def test_an_alarm_is_shown_with_the_time_stamps_of_its_log_and_its_length_on_the_bus() -> None:
    log = _as_shown("injected", _set((0.1, -3600.0), (0.7, -5.0)))
    begun: list[float] = []
    watch = Watch(load_detector(None), on_begin=begun.append)
    (alarm,) = watch.run(in_chunks(log, 700))
    assert alarm.log_begin_s == log.timestamp[alarm.first_message]
    assert begun == [alarm.begin_s]  # by the clock of the table
    assert alarm.log_end_s in log.timestamp
    (expected,) = _watched(_log("injected"))[1]
    written = {}
    for name in ("table", "json", "csv"):
        stream = io.StringIO()
        AlarmWriter(stream, name).write(alarm, watch.summary.first_s)
        written[name] = stream.getvalue()
    line = json.loads(written["json"])
    assert (line["begin_s"], line["end_s"]) == (alarm.log_begin_s, alarm.log_end_s)
    assert line["length_s"] == pytest.approx(expected.duration_s, abs=0.3)
    assert f"{alarm.log_begin_s:.6f},{alarm.log_end_s:.6f},{alarm.duration_s:.6f}," in written["csv"]
    begin_s = float(written["table"].splitlines()[1].split()[0])
    assert begin_s == pytest.approx(expected.begin_s - _log("injected").timestamp[0], abs=0.1)
    assert f"; at {alarm.log_begin_s:.6f} in the log" in written["table"]


def test_a_log_whose_clock_is_right_says_its_time_once() -> None:
    stream = io.StringIO()
    (alarm, *_) = _watched(_log("suppressed"))[1]
    AlarmWriter(stream, "table").write(alarm, 0.0)
    assert "in the log" not in stream.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_breaks_an_alarm_between_words_and_leaves_the_first_column_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (alarm,) = _watched(_log("suppressed"))[1]
    stream, wide = _Terminal(), io.StringIO()
    alarm = replace(alarm, suspects=alarm.suspects[:1] * 5)
    for one in (stream, wide):
        AlarmWriter(one, "table", has_heading=True).write(alarm, 0.0)
    first, *others = stream.getvalue().splitlines()
    assert first == wide.getvalue()[: len(first)]
    assert others
    assert all(line.startswith(" " * 13) and len(line) <= 80 for line in others)
    assert stream.getvalue().split() == wide.getvalue().split()
