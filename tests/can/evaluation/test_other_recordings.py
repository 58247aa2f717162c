"""A run trained on recordings alone, and its detector on recordings that it has never met."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.measurements import collect_results
from kdgat.can.evaluation.other_recordings import evaluate_run
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.scores import BASELINE_FEATURES
from kdgat.canbus import Messages, make_vehicle, read_recording, simulate
from kdgat.canbus.features import FEATURE_VERSION
from kdgat.canbus.profile import learn_profile
from kdgat.run import OutputDirectory
from kdgat.stage import Work
from tests.canbus.recording_files import write_csv


@pytest.fixture(scope="module")
def output(trained_run: OutputDirectory, tmp_path_factory: pytest.TempPathFactory) -> OutputDirectory:
    return OutputDirectory(shutil.copytree(trained_run.path, tmp_path_factory.mktemp("run") / "copy"))


@pytest.fixture(scope="module")
def results(output: OutputDirectory) -> Results:
    return collect_results(output)


def attacked(data_root: Path) -> Messages:
    return read_recording(next((data_root / "synthetic").glob("test_02*DoS*")))


def test_a_run_without_injection_says_so(results: Results) -> None:
    assert results.injection is not None
    assert not results.injection.enabled
    assert set(results.data.splits) >= {"train", "validation"}
    assert not {"injected", "injected_validation"} & set(results.data.splits)
    baselines = {f"baseline: {name}" for name in BASELINE_FEATURES}
    assert set(results.models) == {"normal", "ensemble", "habits"} | baselines
    assert results.preset == "quick"


def test_its_own_test_recordings_score_as_they_did_in_the_run(
    output: OutputDirectory, results: Results, data_root: Path
) -> None:
    again = evaluate_run(output.path, data_root)
    assert again.f1 == results.f1
    assert sum(note.startswith("left out, trained on") for note in again.data.notes) == 8
    for name, scenario in results.scenarios.items():
        assert again.scenarios[name].confusion_matrix == scenario.confusion_matrix


@pytest.mark.processes
def test_the_memory_of_processes_that_score_counts_as_the_stages(output: OutputDirectory, data_root: Path) -> None:
    alone, beside = Work(), Work()
    evaluate_run(output.path, data_root, processes=1, work=alone)
    evaluate_run(output.path, data_root, processes=2, work=beside)
    assert alone.ranks_mib == 0
    assert beside.ranks_mib > 20


def test_without_a_runtime_of_networks_torch_decides_the_same_and_a_warning_says_so(
    output: OutputDirectory,
    results: Results,
    data_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("kdgat.can.evaluation.scoring.RUNTIME", ("onnxruntime_that_nobody_has",))
    with caplog.at_level("WARNING"):
        again = evaluate_run(output.path, data_root)
    (warning,) = (record.getMessage() for record in caplog.records if "torch scores" in record.getMessage())
    assert warning.startswith("onnxruntime_that_nobody_has is not installed")
    for name, scenario in results.scenarios.items():
        assert again.scenarios[name].confusion_matrix == scenario.confusion_matrix


def test_a_scenario_never_heard_of_is_measured_under_its_name(
    output: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    messages = attacked(data_root)
    write_csv(tmp_path / "synthetic" / "brand_new" / "drive.csv", messages)
    found = evaluate_run(output.path, tmp_path)
    assert set(found.f1) == {"brand_new"}
    assert found.f1["brand_new"] is not None
    scenario = found.scenarios["brand_new"]
    assert scenario.num_windows == len(messages) // 100
    assert scenario.num_attack_windows == sum(
        bool(messages.label[start : start + 100].any()) for start in range(0, len(messages) - 99, 100)
    )
    assert set(scenario.recordings) == {"brand_new/drive"}


def test_a_profile_of_the_vehicle_finds_what_its_habits_alone_do_not(output: OutputDirectory, tmp_path: Path) -> None:
    vehicle = make_vehicle(77, "gingko")
    learned, drive, other = (
        simulate(vehicle, 70.0, seed=3),
        simulate(vehicle, 30.0, seed=4),
        simulate(make_vehicle(5), 20.0),
    )
    numbers, counts = np.unique(drive.identifier, return_counts=True)
    silent = int(numbers[counts.argmax()])  # the most frequent one, from the beginning on
    attacked = replace(
        drive.select(drive.identifier != silent), label=np.ones(int((drive.identifier != silent).sum()), np.uint8)
    )
    for name, messages in (("suppressed", attacked), ("learned", learned), ("other", other)):
        write_csv(tmp_path / "synthetic" / "test_01" / f"{name}.csv", messages)
    content = read_recording(tmp_path / "synthetic" / "test_01" / "learned.csv")
    profile = tmp_path / "car.json"
    learn_profile([("learned.csv", content)]).write(profile)
    without = evaluate_run(output.path, tmp_path, processes=1)
    found = evaluate_run(output.path, tmp_path, processes=1, profile=profile)
    habits = [one.models["habits"]["0"]["test_01"] for one in (without, found)]
    assert habits[0].recall == 0.0
    assert habits[1].recall is not None
    assert habits[1].recall > 0.1  # for five seconds of thirty
    assert set(found.scenarios["test_01"].recordings) == {"test_01/suppressed", "test_01/other"}
    notes = "\n".join(found.data.notes)
    assert "left out, the profile learned it: learned.csv: test_01/learned" in notes
    assert "test_01/other: judged without the profile, which expects" in notes
    assert f"habits judged by the profile {profile}, of 70 s" in notes


def test_recordings_without_attack_have_a_false_alarm_rate_and_no_f1(
    output: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    messages = attacked(data_root)
    write_csv(tmp_path / "synthetic" / "clean" / "drive.csv", messages.select(np.flatnonzero(messages.label == 0)))
    found = evaluate_run(output.path, tmp_path)
    assert found.f1 == {"clean": None}
    assert found.scenarios["clean"].num_attack_windows == 0
    assert found.scenarios["clean"].false_alarm_rate is not None


def test_alarms_of_the_run_name_the_attacked_identifiers_more_often_than_chance(results: Results) -> None:
    told = results.scenarios["test_02_unknown_vehicle_known_attack"].explanations
    assert told is not None
    assert told.named_by == "ensemble"
    assert 0 < told.detector.num_windows <= told.num_attacked_windows
    assert told.detector.hit_at_1 is not None
    assert told.detector.hit_at_3 is not None
    assert told.detector.random_at_1 is not None
    assert told.detector.random_at_1 < told.detector.hit_at_1 <= told.detector.hit_at_3 <= 1.0
    assert told.habits.num_windows <= told.detector.num_windows


def test_a_recording_without_labels_is_in_no_metric(output: OutputDirectory, data_root: Path, tmp_path: Path) -> None:
    messages = attacked(data_root)
    folder = tmp_path / "synthetic" / "mixed"
    write_csv(folder / "unknown.csv", messages.select(slice(0, 2000)), has_labels=False)
    alone = evaluate_run(output.path, tmp_path)
    assert alone.scenarios == {}
    assert any("mixed/unknown has no labels" in note and "of 20 windows" in note for note in alone.data.notes)
    write_csv(folder / "known.csv", messages)
    both = evaluate_run(output.path, tmp_path)
    assert set(both.scenarios["mixed"].recordings) == {"mixed/known"}
    assert both.scenarios["mixed"].num_windows == len(messages) // 100


def test_only_trained_recordings_are_an_error_that_says_what_to_give(
    output: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "synthetic").mkdir()
    for path in (data_root / "synthetic").glob("train_*"):
        (tmp_path / "synthetic" / path.name).symlink_to(path)
    with pytest.raises(UserError, match="trained on all 8 recordings of 'synthetic'; give a folder"):
        evaluate_run(output.path, tmp_path)


def test_a_part_of_a_training_recording_is_left_out(output: OutputDirectory, data_root: Path, tmp_path: Path) -> None:
    trained = read_recording(next((data_root / "synthetic").glob("train_01*")))
    write_csv(tmp_path / "synthetic" / "cut" / "part.csv", trained.select(slice(333, 3000)))
    write_csv(tmp_path / "synthetic" / "other" / "drive.csv", attacked(data_root))
    found = evaluate_run(output.path, tmp_path)
    assert set(found.scenarios) == {"other"}
    assert any("shares blocks of messages with train_01" in note and "cut/part" in note for note in found.data.notes)


def test_a_run_on_other_features_is_refused(
    output: OutputDirectory, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.can.evaluation.scoring.FEATURE_VERSION", 1000)
    refused = f"features of version {FEATURE_VERSION}, this kdgat computes version 1000: train again"
    with pytest.raises(UserError, match=refused):
        evaluate_run(output.path, data_root)
