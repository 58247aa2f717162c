"""Alarms of a stream are those of the whole log, whatever the pieces; windows close to each other are one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.can.detection.alarms import Alarm, identifier_text
from kdgat.can.detection.loading import GraphDetector, load_detector
from kdgat.can.detection.picture import draw_timeline
from kdgat.can.detection.watch import Timeline, Watch
from kdgat.can.evaluation.decision import CERTAIN
from kdgat.can.kinds import SMALL_ATTENTION
from kdgat.can.models.names import HABITS
from kdgat.canbus import Messages, WindowConfig, windows_to_graphs
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES, RECORDINGS, SCHEMA, window_chunks
from kdgat.graphs import GraphStore, write_store
from tests.can.detection.untrained import at, drive, in_chunks, untrained
from tests.support.page import Page


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> GraphDetector:
    return load_detector(untrained(SMALL_ATTENTION).write(tmp_path_factory.mktemp("model") / "student.onnx"))


def _watched(detector: GraphDetector, messages: Messages, cuts: list[int]) -> list[Alarm]:
    borders = [0, *sorted(min(cut, len(messages)) for cut in cuts), len(messages)]
    return list(Watch(detector).run(messages.select(slice(*pair)) for pair in pairwise(borders)))


def _without_scores(alarms: list[Alarm]) -> list[tuple[object, ...]]:
    return [(one.begin_s, one.end_s, one.first_message, one.num_windows, one.by, one.guess) for one in alarms]


@settings(deadline=None, max_examples=15)
@given(cuts=st.lists(st.integers(0, 12_000), max_size=8))
def test_pieces_raise_the_alarms_of_the_whole(detector: GraphDetector, cuts: list[int]) -> None:
    messages = drive()
    whole = _watched(detector, messages, [])
    pieces = _watched(detector, messages, cuts)
    assert len(whole) > 1
    assert _without_scores(pieces) == _without_scores(whole)
    np.testing.assert_allclose([one.score for one in pieces], [one.score for one in whole], atol=1e-5)
    assert [[s.identifier for s in one.suspects] for one in pieces] == [
        [s.identifier for s in one.suspects] for one in whole
    ]


@pytest.mark.parametrize("windows", [WindowConfig(), WindowConfig(size=50, stride=20)])
@pytest.mark.parametrize("merge_s", [0.0, 1.0, 3.0])
def test_alarms_are_the_groups_of_alarm_windows(detector: GraphDetector, windows: WindowConfig, merge_s: float) -> None:
    messages = drive()
    detector = replace(detector, windows=windows)
    graphs = windows_to_graphs(messages, windows)
    is_alarm = detector.decide(graphs).is_alarm
    quiet_start = graphs["start_time"][~is_alarm]
    groups: list[list[int]] = []
    for window in np.flatnonzero(is_alarm).tolist():
        end_s = graphs["end_time"][groups[-1][-1]] if groups else -np.inf
        between = quiet_start[(quiet_start > end_s + merge_s) & (quiet_start < graphs["start_time"][window])]
        if len(between) or not groups:
            groups.append([])
        groups[-1].append(window)
    begun: list[float] = []
    alarms = list(Watch(detector, merge_s=merge_s, on_begin=begun.append).run(in_chunks(messages, 1000)))
    assert [alarm.num_windows for alarm in alarms] == [len(group) for group in groups]
    assert [alarm.first_message for alarm in alarms] == [graphs["first_message"][group[0]] for group in groups]
    assert [alarm.begin_s for alarm in alarms] == [graphs["start_time"][group[0]] for group in groups] == begun
    assert [alarm.end_s for alarm in alarms] == [graphs["end_time"][group[-1]] for group in groups]


def test_an_alarm_ends_when_no_window_has_been_one_for_a_second(detector: GraphDetector) -> None:
    messages, watch = drive(), Watch(detector)
    graphs = windows_to_graphs(messages, detector.windows)
    is_alarm = detector.decide(graphs).is_alarm
    last_s, is_open = -np.inf, False
    for window, start in enumerate(range(0, len(messages) - 99, 100)):
        ended = watch.feed(messages.select(slice(start, start + 100)))
        if is_alarm[window]:
            last_s, is_open = graphs["end_time"][window], True
            assert not ended
        else:
            has_ended = is_open and graphs["start_time"][window] - last_s > 1.0
            assert len(ended) == int(has_ended)
            is_open = is_open and not has_ended


def test_each_alarm_is_announced_once_with_its_own_time(detector: GraphDetector) -> None:
    begun: list[float] = []
    alarms = list(Watch(detector, on_begin=begun.append, merge_s=0.0).run([drive()]))
    assert len(alarms) > 3
    assert begun == [alarm.begin_s for alarm in alarms]


def test_the_summary_counts_everything(detector: GraphDetector) -> None:
    messages, timeline = drive(), Timeline()
    begun: list[float] = []
    watch = Watch(detector, timeline=timeline, on_begin=begun.append)
    alarms = list(watch.run(in_chunks(messages, 100)))
    summary = watch.summary
    assert summary.num_messages == len(messages)
    assert summary.num_windows == len(messages) // 100 == sum(map(len, timeline.score))
    assert summary.num_alarms == len(alarms) == len(begun)
    assert summary.num_alarm_windows == sum(alarm.num_windows for alarm in alarms)
    assert summary.duration_s == pytest.approx(messages.duration_s)
    assert f"{len(alarms)} alarms in {len(messages):,} messages" in summary.sentence()


def test_a_log_that_is_shorter_than_a_window_is_one(detector: GraphDetector) -> None:
    watch = Watch(at(detector, -1e9))
    assert [alarm.num_windows for alarm in watch.run([drive().select(slice(30))])] == [1]


def test_a_picture_of_any_length_keeps_a_bounded_number_of_windows_and_the_highest(
    detector: GraphDetector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.can.detection.watch.MAX_POINTS", 64)
    messages, timeline = drive(), Timeline()
    list(Watch(detector, timeline=timeline).run(in_chunks(messages, 300)))
    score = np.concatenate(timeline.score)
    whole = detector.decide(windows_to_graphs(messages, detector.windows)).score
    assert len(score) == sum(map(len, timeline.time_s)) < 64 < len(whole)
    assert score.max() == pytest.approx(whole.max(), abs=1e-4)


def test_a_picture_marks_alarms_with_who_raised_them_and_why(detector: GraphDetector, tmp_path: Path) -> None:
    """An alarm of the habits stands where the network sees nothing wrong: without a word it looks like a mistake."""
    messages, timeline = drive("malfunction", duration_s=20.0), Timeline()
    never = at(detector, 50.0)
    alarms = list(Watch(never, timeline=timeline, merge_s=0.0).run([messages]))
    assert {alarm.by for alarm in alarms} == {(HABITS,)}
    graphs = windows_to_graphs(messages, detector.windows)
    assert (np.concatenate(timeline.score)[never.decide(graphs).by_habits] >= np.float32(CERTAIN)).all()
    draw_timeline(tmp_path / "both.html", "drive", timeline, alarms, never.detector.threshold)
    page = Page.of_report(tmp_path / "both.html").data["figure-0-data"]
    assert f"{len(alarms)} alarm{'s' if len(alarms) > 1 else ''} by the habits of identifiers" in page
    assert "raised by the habits of identifiers" in page
    assert f"{identifier_text(alarms[0].suspects[0].identifier)} (" in page


def test_scores_that_are_no_numbers_are_an_error(tmp_path: Path) -> None:
    """A diverged network would never raise an alarm."""
    network = untrained(SMALL_ATTENTION)
    model = deepcopy(network.model)
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(np.nan)
    damaged = load_detector(replace(network, model=model).write(tmp_path / "model.onnx", threshold=0.0))
    with pytest.raises(UserError, match="no finite score"):
        list(Watch(damaged).run([drive()]))


def test_nothing_is_no_alarm(detector: GraphDetector) -> None:
    watch = Watch(detector)
    assert list(watch.run([drive().select(slice(0))])) == []
    assert watch.summary.sentence() == "no alarm in 0 messages of 0.0 s: 0 of 0 windows"


@pytest.mark.parametrize("attack", ["replay", "suppression"])
def test_without_a_model_the_habits_decide(attack: str) -> None:
    habits = load_detector(None)
    assert list(Watch(habits).run([drive(None, duration_s=20.0)])) == []
    alarms = list(Watch(habits).run([drive(attack, duration_s=20.0)]))
    assert alarms
    assert {alarm.by for alarm in alarms} == {(HABITS,)}


@pytest.mark.parametrize("attack", ["replay", "suppression"])
def test_a_network_that_sees_nothing_leaves_the_alarms_of_the_habits_as_they_are_without_it(
    detector: GraphDetector, attack: str
) -> None:
    messages = drive(attack, duration_s=20.0)
    quiet = at(detector, 50.0)
    alone, beside = (list(Watch(one).run(in_chunks(messages, 700))) for one in (load_detector(None), quiet))
    assert len(alone) > 0
    assert _without_scores(beside) == _without_scores(alone)
    for one, other in zip(alone, beside, strict=True):
        named = {suspect.identifier: suspect.reasons for suspect in other.suspects}
        assert set(one.suspects[0].reasons) <= set(named[one.suspects[0].identifier])


def test_the_column_of_a_store_is_what_is_said_of_the_log(tmp_path: Path) -> None:
    messages = drive("replay", duration_s=20.0)
    names = {
        "node_features": NODE_FEATURES,
        "edge_features": EDGE_FEATURES,
        "attributes": {RECORDINGS: ["drive"]},
        "build": {},
    }
    write_store(tmp_path / "windows.h5", SCHEMA, window_chunks(messages, WindowConfig()), **names)
    stored = np.asarray(GraphStore.open(tmp_path / "windows.h5", SCHEMA).columns["suspicion"])
    timeline = Timeline()
    watch = Watch(load_detector(None), timeline=timeline)
    list(watch.run(in_chunks(messages, 1000)))
    assert watch.summary.num_alarm_windows > 10
    assert (stored != 0).tolist() == (np.concatenate(timeline.score) >= np.float32(CERTAIN)).tolist()
