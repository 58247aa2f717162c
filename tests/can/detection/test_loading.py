"""A finished run, a copy in a registry, and the file that is exported of it decide alike, as the evaluation does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kdgat as api
from kdgat.base import UserError
from kdgat.can.detection.loading import chosen_detector, load_detector, trained_network
from kdgat.can.detection.model_file import write_model
from kdgat.can.evaluation.calibration import OperatingPoint
from kdgat.can.evaluation.decision import decide
from kdgat.can.evaluation.run import FinishedCanRun
from kdgat.can.evaluation.scoring import RecordingScorer
from kdgat.can.evaluation.vehicle import VehicleThreshold, weights_of
from kdgat.can.nightly.registered import model_source
from kdgat.canbus import windows_to_graphs
from kdgat.canbus.profile import Profile
from kdgat.registry import Registry, find_model
from kdgat.run import OutputDirectory
from kdgat.training import load_weights
from tests.can.detection.untrained import WINDOWS, drive
from tests.support.command_line import kdgat


@pytest.fixture(scope="module")
def run(trained_run: OutputDirectory) -> FinishedCanRun:
    return FinishedCanRun(trained_run)


def _threshold(run: FinishedCanRun, threshold: float) -> VehicleThreshold:
    return VehicleThreshold(
        created="2026-01-01T00:00:00+00:00",
        detector="normal",
        seeds=[0],
        weights=weights_of(run, [0]),
        operating_point=OperatingPoint(threshold=threshold, source="clean minutes of a.log", alarms_per_hour=1.0),
        sentence="",
    )


def test_a_run_decides_as_its_evaluation_does(run: FinishedCanRun) -> None:
    """By another runtime, with the same calibration, threshold and habits."""
    graphs = windows_to_graphs(drive("suppression", duration_s=20.0), WINDOWS)
    scorer = RecordingScorer(run)
    tables = scorer.score([graphs], ["drive"])
    found = load_detector(run.output.path)
    verdicts = found.decide(graphs)
    expected = decide(scorer.default_detector, tables)
    assert found.detector == scorer.default_detector
    np.testing.assert_allclose(verdicts.logit, expected.logit, atol=1e-4)
    assert found.detector.rule.habits
    assert verdicts.by_habits.any()
    assert verdicts.is_alarm.tolist() == expected.is_alarm.tolist()


@pytest.mark.parametrize("is_asked", [False, True])
def test_the_habits_have_a_part_in_the_decision_where_the_rule_gives_it_to_them(
    run: FinishedCanRun, is_asked: bool, tmp_path: Path
) -> None:
    graphs = windows_to_graphs(drive("suppression", duration_s=20.0), WINDOWS)
    chosen = chosen_detector(run, "normal", 0)
    detector = replace(chosen, rule=chosen.rule.model_copy(update={"kind": "fixed", "habits": is_asked}))
    network = trained_network(run, detector, 0, "normal")
    write_model(tmp_path / "model.onnx", "onnx", network.weights, network.description, network.parameters)
    verdicts = load_detector(tmp_path / "model.onnx").decide(graphs)
    assert (graphs["suspicion"] != 0).any()
    assert verdicts.by_habits.tolist() == ((graphs["suspicion"] != 0) & is_asked).tolist()


def test_a_rule_that_needs_whole_recordings_is_refused(run: FinishedCanRun) -> None:
    chosen = chosen_detector(run, "normal", 0)
    detector = replace(chosen, rule=chosen.rule.model_copy(update={"kind": "per_recording"}))
    with pytest.raises(UserError, match=r"per_recording, which needs a whole recording .* --profile"):
        trained_network(run, detector, 0, "normal")


@pytest.mark.parametrize("file_format", ["onnx", "torch"])
def test_an_exported_file_decides_as_the_run_by_the_network_that_detect_takes(
    run: FinishedCanRun, file_format: str, tmp_path: Path
) -> None:
    graphs = windows_to_graphs(drive(), WINDOWS)
    expected = load_detector(run.output.path, "normal").decide(graphs)
    answer = kdgat(
        "model",
        "export",
        run.output.path,
        "--format",
        file_format,
        "--out",
        tmp_path / "a" / "model",
        status=0,
    )
    assert "normal of seed 0" in answer.stdout
    found = load_detector(tmp_path / "a" / "model")
    assert found.detector.model == "normal"
    verdicts = found.decide(graphs)
    np.testing.assert_allclose(verdicts.logit, expected.logit, atol=1e-5)
    assert verdicts.is_alarm.tolist() == expected.is_alarm.tolist()


def test_a_registered_model_is_found_by_its_id(run: FinishedCanRun, tmp_path: Path) -> None:
    source = model_source(run.output.path)
    entry = Registry(tmp_path).add(source.files, family="can", dataset="synthetic", content=source.content)
    graphs = windows_to_graphs(drive(), WINDOWS)
    found = load_detector(find_model(entry.id, tmp_path))
    np.testing.assert_array_equal(found.decide(graphs).logit, load_detector(run.output.path).decide(graphs).logit)
    with pytest.raises(UserError, match="absent does not exist"):
        find_model("absent")


def test_a_profile_sets_the_threshold_of_run_and_file(run: FinishedCanRun, tmp_path: Path) -> None:
    profile = _threshold(run, -1.5).added_to(Profile())
    of_run = load_detector(run.output.path, profile=profile)
    assert of_run.detector.threshold == pytest.approx(-1.5)
    assert (of_run.detector.model, of_run.detector.rule.habits) == ("normal", True)
    network = trained_network(run, chosen_detector(run, "normal", 0), 0, "normal")
    write_model(tmp_path / "plain.onnx", "onnx", network.weights, network.description, network.parameters)
    of_file = load_detector(tmp_path / "plain.onnx", profile=profile)
    assert of_file.detector.rule == of_run.detector.rule
    profile.write(tmp_path / "car.json")
    words = ("--model", "normal", "--profile", tmp_path / "car.json", "--out", tmp_path / "own.onnx")
    kdgat("model", "export", run.output.path, *words, status=0)
    assert load_detector(tmp_path / "own.onnx").detector.threshold == pytest.approx(-1.5)


def test_the_threshold_of_other_weights_is_refused(run: FinishedCanRun, tmp_path: Path) -> None:
    other = _threshold(run, -1.0).model_copy(update={"weights": {"seed 0, normal": "0" * 64}}).added_to(Profile())
    with pytest.raises(UserError, match=r"networks\.weights of the profile"):
        load_detector(run.output.path, profile=other)
    network = trained_network(run, chosen_detector(run, "normal", 0), 0, "normal")
    write_model(tmp_path / "plain.onnx", "onnx", network.weights, network.description, network.parameters)
    with pytest.raises(UserError, match=r"learn it again by `kdgat profile .* --detector normal --seed 0`"):
        load_detector(tmp_path / "plain.onnx", profile=other)
    assert load_detector(run.output.path, "habits", profile=other).detector.rule.habits


def test_a_profile_without_a_threshold_leaves_it_and_nothing_is_exported_with_it(
    run: FinishedCanRun, tmp_path: Path
) -> None:
    assert load_detector(run.output.path, profile=Profile()).detector == load_detector(run.output.path).detector
    Profile().write(tmp_path / "car.json")
    words = ("--model", "normal", "--profile", tmp_path / "car.json", "--out", tmp_path / "own.onnx")
    assert (
        "has no threshold of normal of seed 0: learn it"
        in kdgat("model", "export", run.output.path, *words, status=1).stderr
    )


def test_what_a_run_does_not_have_is_said(run: FinishedCanRun) -> None:
    with pytest.raises(UserError, match="no detector 'curriculum'; it has: normal"):
        load_detector(run.output.path, "curriculum")
    with pytest.raises(UserError, match="no seed 7; it has: 0"):
        load_detector(run.output.path, seed=7)
    with pytest.raises(UserError, match="the arrival clock decides no longer: give --detector habits"):
        load_detector(run.output.path, "clock")
    with pytest.raises(UserError, match=r"^baseline: count_excess is no attention network"):
        load_detector(run.output.path, "baseline: count_excess")
    refused = kdgat("model", "export", run.output.path, "--model", "fusion", "--out", "x", status=1).stderr
    assert refused == "error: fusion is not one attention network: give --model, one of normal\n"


def test_the_network_that_decides_is_loaded_as_a_torch_module(run: FinishedCanRun) -> None:
    network = api.load_model(run.output.path)
    stored = load_weights(run.weights(run.seeds[0])["normal"])[0]
    assert not network.training
    assert all(torch.equal(one, stored[name]) for name, one in network.state_dict().items())
