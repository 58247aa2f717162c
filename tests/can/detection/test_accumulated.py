"""Evidence that adds up in what `kdgat detect` says: alike in pieces and at once, named, and with its beginning."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdgat.can.detection.accumulated import ACCUMULATION, ADDS_UP
from kdgat.can.detection.alarms import Alarm, identifier_text
from kdgat.can.detection.detector import Detector
from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.output import AlarmWriter
from kdgat.can.detection.picture import RAISED_BY, draw_timeline
from kdgat.can.detection.watch import Timeline, Watch
from kdgat.can.evaluation.accumulation import Accumulation, Reference
from kdgat.can.kinds import SMALL_ATTENTION
from kdgat.canbus import windows_to_graphs
from tests.can.detection.untrained import WINDOWS, drive, in_chunks, untrained


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Detector:
    """Return a network that no window is an alarm for, and a reference by which its judgement soon adds up."""
    path = untrained(SMALL_ATTENTION).write(tmp_path_factory.mktemp("model") / "student.onnx")
    found = replace(load_detector(path), threshold=1e9, habits=False)
    scores = found.decide(windows_to_graphs(drive(None), WINDOWS)).node_logit
    few = np.sort(scores)[: int(0.9 * len(scores))]  # what a tenth of the nodes reach has never been seen
    reference = Reference.of_benign([np.resize(few, 3000)])
    assert reference is not None
    quick = Accumulation(reference=reference, hours_between_false_episodes=0.02 / 3600.0)
    return replace(found, accumulation=quick)


def _alarms(detector: Detector, size: int) -> list[Alarm]:
    return list(Watch(detector).run(in_chunks(drive(), size)))


def _by_accumulation(alarms: list[Alarm]) -> list[Alarm]:
    return [one for one in alarms if one.by == (ACCUMULATION,)]


@settings(deadline=None, max_examples=10)
@given(size=st.integers(50, 12_000))
def test_a_stream_raises_the_alarms_of_the_whole_log(detector: Detector, size: int) -> None:
    whole, pieces = _alarms(detector, 10**6), _alarms(detector, size)
    assert _by_accumulation(whole)
    assert [(one.begin_s, one.end_s, one.by, one.since) for one in pieces] == [
        (one.begin_s, one.end_s, one.by, one.since) for one in whole
    ]


def test_without_a_reference_nothing_adds_up(detector: Detector) -> None:
    assert not _by_accumulation(_alarms(replace(detector, accumulation=None), 1000))


def test_an_alarm_names_whose_evidence_adds_up_since_when_and_over_how_many_windows(detector: Detector) -> None:
    for alarm in _by_accumulation(_alarms(detector, 1000)):
        assert alarm.since is not None
        assert alarm.since.begin_s <= alarm.begin_s
        assert alarm.since.num_windows >= 1
        assert alarm.score >= 0.5
        assert all(ADDS_UP in one.reasons for one in alarm.suspects)


def test_all_formats_say_it(detector: Detector, tmp_path: Path) -> None:
    timeline = Timeline()
    alarms = _by_accumulation(list(Watch(detector, timeline=timeline).run(in_chunks(drive(), 1000))))
    alarm = alarms[0]
    assert alarm.since is not None
    written = {}
    for name in ("table", "json", "csv"):
        stream = io.StringIO()
        AlarmWriter(stream, name).write(alarm, drive().timestamp[0])
        written[name] = stream.getvalue()
    line = json.loads(written["json"])
    assert line["by"] == [ACCUMULATION]
    assert (line["evidence_since_s"], line["evidence_windows"]) == (alarm.since.begin_s, alarm.since.num_windows)
    assert f"; evidence over {alarm.since.num_windows:,} windows since " in written["table"]
    assert identifier_text(alarm.suspects[0].identifier) in written["table"]
    heading, row = written["csv"].splitlines()
    assert heading.endswith("evidence_since_s,evidence_windows")
    assert row.endswith(f"{alarm.since.begin_s:.6f},{alarm.since.num_windows}")
    path = tmp_path / "alarms.html"
    draw_timeline(path, "drive", timeline, alarms, 2.0)
    assert RAISED_BY[ACCUMULATION][1] in path.read_text()


def test_a_file_keeps_what_adds_up(detector: Detector, tmp_path: Path) -> None:
    from kdgat.can.detection.model_file import DetectorParameters, write_model

    network = untrained(SMALL_ATTENTION)
    parameters = DetectorParameters(name="distill_gat", windows=WINDOWS, accumulation=detector.accumulation)
    for file_format in ("onnx", "torch"):
        path = tmp_path / f"model.{file_format}"
        write_model(path, file_format, network.weights, network.description, parameters)
        assert load_detector(path).accumulation == detector.accumulation
