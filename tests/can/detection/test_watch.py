"""Alarms of a stream are those of the whole log, whatever the pieces; windows in a row are one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdgat.can.detection.alarms import Alarm
from kdgat.can.detection.detector import Detector
from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.watch import Timeline, Watch, in_chunks
from kdgat.can.kinds import SMALL_ATTENTION
from kdgat.can.recordings.messages import Messages
from kdgat.can.sections import WindowConfig
from kdgat.can.windows.graphs import build_graphs
from tests.can.detection.untrained import drive, untrained


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Detector:
    return load_detector(untrained(SMALL_ATTENTION).write(tmp_path_factory.mktemp("model") / "student.onnx"))


def _watched(detector: Detector, messages: Messages, cuts: list[int]) -> list[Alarm]:
    borders = [0, *sorted(min(cut, len(messages)) for cut in cuts), len(messages)]
    return list(Watch(detector).run(messages.select(slice(*pair)) for pair in pairwise(borders)))


def _without_scores(alarms: list[Alarm]) -> list[tuple[object, ...]]:
    return [(one.begin_s, one.end_s, one.first_message, one.num_windows, one.by, one.guess) for one in alarms]


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(0, 12_000), max_size=8))
def test_pieces_raise_the_alarms_of_the_whole(detector: Detector, cuts: list[int]) -> None:
    messages = drive()
    whole = _watched(detector, messages, [])
    pieces = _watched(detector, messages, cuts)
    assert len(whole) > 3
    assert _without_scores(pieces) == _without_scores(whole)
    np.testing.assert_allclose([one.score for one in pieces], [one.score for one in whole], atol=1e-5)
    assert [[s.identifier for s in one.suspects] for one in pieces] == [
        [s.identifier for s in one.suspects] for one in whole
    ]


@pytest.mark.parametrize("windows", [WindowConfig(), WindowConfig(size=50, stride=20)])
def test_alarms_are_the_runs_of_alarm_windows(detector: Detector, windows: WindowConfig) -> None:
    messages = drive()
    detector = replace(detector, windows=windows)
    graphs = build_graphs(messages, windows)
    is_alarm = detector.decide(graphs).is_alarm
    edges = np.diff(np.concatenate([[0], is_alarm.astype(int), [0]]))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    alarms = list(Watch(detector).run(in_chunks(messages, 1000)))
    assert [alarm.num_windows for alarm in alarms] == (stops - starts).tolist()
    assert [alarm.first_message for alarm in alarms] == graphs["first_message"][starts].tolist()
    assert [alarm.begin_s for alarm in alarms] == graphs["start_time"][starts].tolist()
    assert [alarm.end_s for alarm in alarms] == graphs["end_time"][stops - 1].tolist()


def test_an_alarm_ends_as_soon_as_a_window_is_none(detector: Detector) -> None:
    messages, watch = drive(), Watch(detector)
    is_alarm = detector.decide(build_graphs(messages, detector.windows)).is_alarm
    ended = [len(watch.feed(messages.select(slice(start, start + 100)))) for start in range(0, len(messages) - 99, 100)]
    expected = [int(before and not now) for before, now in pairwise([False, *is_alarm.tolist()])]
    assert ended == expected


def test_the_summary_counts_everything(detector: Detector) -> None:
    messages, timeline = drive(), Timeline()
    begun: list[float] = []
    watch = Watch(detector, timeline=timeline, on_begin=begun.append)
    alarms = list(watch.run(in_chunks(messages, 100)))
    summary = watch.summary
    assert summary.num_messages == len(messages)
    assert summary.num_windows == len(messages) // 100 == sum(map(len, timeline.logit))
    assert summary.num_alarms == len(alarms) == len(begun)
    assert summary.num_alarm_windows == sum(alarm.num_windows for alarm in alarms)
    assert summary.duration_s == pytest.approx(messages.duration_s)
    assert f"{len(alarms)} alarms in {len(messages):,} messages" in summary.sentence()


def test_a_log_that_is_shorter_than_a_window_is_one(detector: Detector) -> None:
    watch = Watch(detector.with_threshold(-1e9))
    assert [alarm.num_windows for alarm in watch.run([drive().select(slice(30))])] == [1]


def test_nothing_is_no_alarm(detector: Detector) -> None:
    watch = Watch(detector)
    assert list(watch.run([drive().select(slice(0))])) == []
    assert watch.summary.sentence() == "no alarm in 0 messages of 0.0 s: 0 of 0 windows"


def test_the_clock_decides_without_a_model(tmp_path: Path) -> None:
    clock = load_detector(None)
    assert list(Watch(clock).run([drive(None, duration_s=20.0)])) == []
    alarms = list(Watch(clock).run([drive("suppression", duration_s=20.0)]))
    assert alarms
    assert {alarm.by for alarm in alarms} == {("clock",)}
