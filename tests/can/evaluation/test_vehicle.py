"""The threshold of one vehicle, from minutes of its traffic that hold no attack."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.calibration import DecisionRule, OperatingPoint
from kdgat.can.evaluation.decision import Detector
from kdgat.can.evaluation.other_recordings import evaluate_run, make_evaluation
from kdgat.can.evaluation.scoring import RecordingScorer
from kdgat.can.evaluation.vehicle import VehicleCalibration, calibrate_run, highest_threshold
from kdgat.canbus import make_vehicle, read_recording, simulate, write_recording
from kdgat.canbus.simulation import AttackKind
from kdgat.family import ScoringRequest
from kdgat.run import OutputDirectory, RunError
from kdgat.stage import Finished
from kdgat.stage.runner import run_stage
from tests.support.command_line import Answer

VEHICLE = make_vehicle(77, "gingko")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two minutes of a vehicle that the run has never met."""
    path = tmp_path_factory.mktemp("clean") / "drive.parquet"
    write_recording(path, simulate(VEHICLE, 120.0, seed=3))
    return path


@pytest.fixture(scope="module")
def calibration(trained_run: OutputDirectory, clean: Path) -> VehicleCalibration:
    return calibrate_run(trained_run.path, [clean])


def test_a_calibration_says_what_it_is_made_of(
    calibration: VehicleCalibration, clean: Path, trained_run: OutputDirectory
) -> None:
    point = calibration.operating_point
    assert -3.0 <= point.threshold <= 2.0
    assert point.num_windows == len(read_recording(clean)) // 100
    assert calibration.hours == pytest.approx(120.0 / 3600.0, rel=0.05)
    assert calibration.recordings == {"drive.parquet": read_recording(clean).content_hash()}
    assert list(calibration.weights) == ["seed 0, normal"]
    assert "clean minutes of drive.parquet" in calibration.sentence
    assert "habits of identifiers" in calibration.sentence


def test_a_calibration_survives_writing_and_a_damaged_one_is_refused(
    calibration: VehicleCalibration, tmp_path: Path
) -> None:
    path = tmp_path / "drive.json"
    calibration.write(path)
    assert VehicleCalibration.read(path) == calibration
    older = json.loads(path.read_text()) | {"accumulation": {"hours_between_false_episodes": 24.0}}
    path.write_text(json.dumps(older))
    assert VehicleCalibration.read(path) == calibration, "what evidence that adds up was judged by is left out"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"operating_point": {}}))
    with pytest.raises(RunError, match="make it with `kdgat calibrate`"):
        VehicleCalibration.read(path)


@pytest.mark.parametrize(("own", "highest"), [(None, np.log(3.0)), (-1.0, np.log(3.0)), (2.5, 2.5)])
def test_clean_minutes_may_keep_a_threshold_above_the_default_that_other_vehicles_asked_for(
    own: float | None, highest: float
) -> None:
    detector = Detector("normal", {}, DecisionRule())
    if own is not None:
        detector = detector.at(OperatingPoint(threshold=own, source="other vehicles", alarms_per_hour=40.0))
    assert highest_threshold(detector, np.log(3.0)) == pytest.approx(highest)


def test_a_recording_of_attacks_is_refused(trained_run: OutputDirectory, tmp_path: Path) -> None:
    path = tmp_path / "dos.parquet"
    write_recording(path, simulate(VEHICLE, 5.0, AttackKind.DOS))
    with pytest.raises(UserError, match=r"dos\.parquet: [\d,]+ of its [\d,]+ messages are labelled as attacks"):
        calibrate_run(trained_run.path, [path])


def test_a_short_recording_is_refused_with_what_is_missing(trained_run: OutputDirectory, tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    write_recording(path, simulate(VEHICLE, 20.0))
    with pytest.raises(UserError, match=r"windows are too few .* needs 1,000, about \d+ s more; record longer"):
        calibrate_run(trained_run.path, [path])


def test_one_recording_given_twice_counts_once(trained_run: OutputDirectory, clean: Path, tmp_path: Path) -> None:
    copy = shutil.copy(clean, tmp_path / "copy.parquet")
    with pytest.raises(UserError, match=r"copy\.parquet: the same messages were given already"):
        calibrate_run(trained_run.path, [clean, Path(copy)])


def test_a_recording_that_the_run_was_trained_on_is_refused(trained_run: OutputDirectory, data_root: Path) -> None:
    trained = next((data_root / "synthetic").glob("train_01*"))
    with pytest.raises(UserError, match="the run was trained on it"):
        calibrate_run(trained_run.path, [trained])


def test_a_part_of_a_recording_that_the_run_was_trained_on_is_refused(
    trained_run: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    known = read_recording(next(data_root.rglob("train_01*.parquet")))
    part = known.select(slice(500, len(known) // 2))
    write_recording(tmp_path / "part.parquet", replace(part, timestamp=part.timestamp + 9.0))
    with pytest.raises(UserError, match=r"much of it is in .*, which the run was trained on"):
        calibrate_run(trained_run.path, [tmp_path / "part.parquet"])


def test_minutes_that_look_attacked_are_refused_even_without_labels(
    trained_run: OutputDirectory, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = RecordingScorer.score

    def loud(self: RecordingScorer, *given: object) -> object:
        tables = score(self, *given)  # type: ignore[arg-type]
        for table in tables.values():
            table.scores["normal"][: table.num_windows // 40] = 1000.0
        return tables

    monkeypatch.setattr(RecordingScorer, "score", loud)
    with pytest.raises(UserError, match=r"drive\.parquet: in 2\.\d+% of the windows the network"):
        calibrate_run(trained_run.path, [clean])


@pytest.mark.processes  # a drive is long enough for other processes to help
def test_an_evaluation_uses_the_calibration_and_says_so(
    trained_run: OutputDirectory, calibration: VehicleCalibration, clean: Path, tmp_path: Path
) -> None:
    lower = calibration.operating_point.model_copy(update={"threshold": -3.0})
    path = tmp_path / "drive.json"
    calibration.model_copy(update={"operating_point": lower}).write(path)
    folder = tmp_path / "data" / "synthetic" / "drives"
    write_recording(folder / "dos.parquet", simulate(VEHICLE, 20.0, AttackKind.DOS, seed=4))
    shutil.copy(clean, folder / "clean.parquet")
    results = evaluate_run(trained_run.path, tmp_path / "data", calibration=path)
    assert results.detector.operating_point == lower
    assert results.detector.calibration == calibration.sentence
    assert results.detector.decision.threshold == pytest.approx(1.0 / (1.0 + np.exp(3.0)))
    assert any("its threshold was set on it: drive.parquet" in note for note in results.data.notes)
    assert set(results.scenarios["drives"].recordings) == {"drives/dos"}
    plain = evaluate_run(trained_run.path, tmp_path / "data")
    assert (results.scenarios["drives"].recall or 0.0) >= (plain.scenarios["drives"].recall or 0.0)
    job = make_evaluation(
        ScoringRequest(trained_run.path, tmp_path / "data", calibration=path), below=tmp_path / "jobs"
    )
    assert isinstance(run_stage(job, quiet=True), Finished)
    found = json.loads((job.path / "results.json").read_text())
    assert found["detector"]["operating_point"]["threshold"] == -3.0


def test_a_calibration_of_other_weights_is_refused(
    trained_run: OutputDirectory, calibration: VehicleCalibration, data_root: Path, tmp_path: Path
) -> None:
    path = tmp_path / "drive.json"
    calibration.model_copy(update={"weights": {"seed 0, normal": "0" * 64}}).write(path)
    with pytest.raises(UserError, match="made with other weights"):
        evaluate_run(trained_run.path, data_root, calibration=path)
    calibration.model_copy(update={"seeds": [0, 1]}).write(path)
    with pytest.raises(UserError, match="calibrate again"):
        evaluate_run(trained_run.path, data_root, calibration=path)


def test_the_command_writes_the_file_and_evaluate_takes_it(
    kdgat: Callable[..., Answer], trained_run: OutputDirectory, clean: Path, data_root: Path, tmp_path: Path
) -> None:
    unlabelled = tmp_path / "unlabelled.parquet"
    write_recording(unlabelled, replace(simulate(VEHICLE, 60.0, seed=9), labelled=False))
    path = tmp_path / "made" / "gingko.json"
    words = ("calibrate", "--clean", clean, unlabelled, "--model", trained_run.path, "--out", path)
    made = kdgat(*words, "--alarms-per-hour", "100", status=0)
    assert "a budget of 100 false alarms per hour" in made.stdout
    assert set(VehicleCalibration.read(path).recordings) == {"drive.parquet", "unlabelled.parquet"}
    data = ("--run", trained_run.path, "--data-root", data_root)
    used = kdgat("evaluate", "can", *data, "--calibration", path, "--quiet", status=0)
    assert "clean minutes of drive.parquet, unlabelled.parquet" in used.stdout
    assert "what hides behind the F1" in used.stdout
    trained = next((data_root / "synthetic").glob("train_01*"))
    refused = kdgat("calibrate", "--clean", trained, "--model", trained_run.path, status=1)
    assert "the run was trained on it" in refused.stderr
