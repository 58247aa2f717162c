"""The threshold of one vehicle, from minutes of its traffic that hold no attack."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.calibration import HIGHEST_LOGIT, LOWEST_LOGIT
from kdgat.can.evaluation.other_recordings import evaluate_run, make_evaluation
from kdgat.can.evaluation.run import FinishedCanRun, detector_of
from kdgat.can.evaluation.scoring import RecordingScorer
from kdgat.can.evaluation.vehicle import VehicleThreshold, learn_threshold, threshold_for, thresholds_of
from kdgat.canbus import make_vehicle, read_recording, simulate, write_recording
from kdgat.canbus.profile import Profile, learn_profile
from kdgat.canbus.simulation import AttackKind
from kdgat.family import ScoringRequest
from kdgat.run import OutputDirectory
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
def threshold(trained_run: OutputDirectory, clean: Path) -> VehicleThreshold:
    return _learned(trained_run, clean)


def _learned(run: OutputDirectory, *logs: Path, **given: object) -> VehicleThreshold:
    return learn_threshold(run.path, [(log.name, read_recording(log)) for log in logs], **given)  # type: ignore[arg-type]


def test_a_threshold_says_what_it_is_made_of(
    threshold: VehicleThreshold, clean: Path, trained_run: OutputDirectory
) -> None:
    point = threshold.operating_point
    assert LOWEST_LOGIT <= point.threshold <= HIGHEST_LOGIT
    assert 0.95 < point.num_windows / (len(read_recording(clean)) // 100) <= 1.0, "alarms of the habits are left out"
    assert point.hours == pytest.approx(120.0 / 3600.0, rel=0.05)
    assert list(threshold.weights) == ["seed 0, normal"]
    assert "clean minutes of drive.parquet" in threshold.sentence


def test_a_profile_holds_the_last_threshold_of_each_detector_and_its_weights(threshold: VehicleThreshold) -> None:
    other = threshold.model_copy(update={"weights": {"seed 0, normal": "0" * 64}})
    anew = threshold.model_copy(update={"sentence": "anew"})
    profile = anew.added_to(other.added_to(threshold.added_to(Profile())))
    assert thresholds_of(Profile.model_validate(profile.model_dump(mode="json"))) == [other, anew]


def test_a_damaged_threshold_is_refused_with_what_makes_one(threshold: VehicleThreshold) -> None:
    profile = Profile(networks=[threshold.model_dump(mode="json") | {"operating_point": {}}])
    with pytest.raises(UserError, match=r"networks\.0 of the profile .*learn the profile anew by `kdgat profile"):
        thresholds_of(profile)


def test_a_short_recording_is_refused_with_what_is_missing(trained_run: OutputDirectory, tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    write_recording(path, simulate(VEHICLE, 20.0))
    with pytest.raises(UserError, match=r"windows are too few .* needs 1,000, about \d+ s more; record longer"):
        _learned(trained_run, path)


def test_a_recording_that_the_run_was_trained_on_is_refused(trained_run: OutputDirectory, data_root: Path) -> None:
    trained = next((data_root / "synthetic").glob("train_01*"))
    with pytest.raises(UserError, match="the run was trained on it"):
        _learned(trained_run, trained)


def test_a_part_of_a_recording_that_the_run_was_trained_on_is_refused(
    trained_run: OutputDirectory, data_root: Path, tmp_path: Path
) -> None:
    known = read_recording(next(data_root.rglob("train_01*.parquet")))
    part = known.select(slice(500, len(known) // 2))
    write_recording(tmp_path / "part.parquet", replace(part, timestamp=part.timestamp + 9.0))
    with pytest.raises(UserError, match=r"much of it is in .*, which the run was trained on"):
        _learned(trained_run, tmp_path / "part.parquet")


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
        _learned(trained_run, clean)
    assert _learned(trained_run, clean, is_trusted=True).operating_point.threshold == HIGHEST_LOGIT


@pytest.mark.processes  # a drive is long enough for other processes to help
def test_an_evaluation_uses_the_threshold_of_a_profile_and_says_so(
    trained_run: OutputDirectory, threshold: VehicleThreshold, clean: Path, tmp_path: Path
) -> None:
    lower = threshold.operating_point.model_copy(update={"threshold": -3.0})
    path = tmp_path / "car.json"
    own = learn_profile([("drive", read_recording(clean))])
    threshold.model_copy(update={"operating_point": lower}).added_to(own).write(path)
    folder = tmp_path / "data" / "synthetic" / "drives"
    write_recording(folder / "dos.parquet", simulate(VEHICLE, 20.0, AttackKind.DOS, seed=4))
    shutil.copy(clean, folder / "clean.parquet")
    results = evaluate_run(trained_run.path, tmp_path / "data", profile=path)
    assert results.detector.operating_point == lower
    assert results.detector.profile == threshold.sentence
    assert results.detector.decision.threshold == pytest.approx(1.0 / (1.0 + np.exp(3.0)))
    assert any("the profile learned it: drive" in note for note in results.data.notes)
    assert set(results.scenarios["drives"].recordings) == {"drives/dos"}
    own.write(tmp_path / "plain.json")
    plain = evaluate_run(trained_run.path, tmp_path / "data", profile=tmp_path / "plain.json")
    assert plain.detector.profile is None
    assert (results.scenarios["drives"].recall or 0.0) >= (plain.scenarios["drives"].recall or 0.0)
    job = make_evaluation(ScoringRequest(trained_run.path, tmp_path / "data", profile=path), below=tmp_path / "jobs")
    assert isinstance(run_stage(job, quiet=True), Finished)
    found = json.loads((job.path / "results.json").read_text())
    assert found["detector"]["operating_point"]["threshold"] == -3.0


def test_a_threshold_of_other_weights_is_refused_and_one_of_another_detector_is_not_used(
    trained_run: OutputDirectory, threshold: VehicleThreshold, caplog: pytest.LogCaptureFixture
) -> None:
    run = FinishedCanRun(trained_run)
    detector = detector_of(run)
    other = threshold.model_copy(update={"weights": {"seed 0, normal": "0" * 64}})
    own = threshold.weights["seed 0, normal"][:12]
    said = rf"its threshold of ensemble is of seed 0, normal 0{{12}}, and .* has {own}: learn it again by `.*--seed 0`"
    with pytest.raises(UserError, match=said):
        threshold_for(other.added_to(Profile()), run, detector)
    assert threshold_for(threshold.added_to(other.added_to(Profile())), run, detector) == threshold
    assert threshold_for(Profile(), run, detector) is None
    assert not caplog.messages
    assert threshold_for(threshold.model_copy(update={"seeds": [0, 1]}).added_to(Profile()), run, detector) is None
    assert caplog.messages == [
        "the profile has no threshold of ensemble of seeds [0]; it has: ensemble of seeds [0, 1]"
    ]


def test_the_command_writes_the_profile_and_evaluate_takes_it(
    kdgat: Callable[..., Answer], trained_run: OutputDirectory, clean: Path, data_root: Path, tmp_path: Path
) -> None:
    unlabelled = tmp_path / "unlabelled.parquet"
    write_recording(unlabelled, replace(simulate(VEHICLE, 60.0, seed=9), labelled=False))
    path = tmp_path / "made" / "gingko.json"
    words = ("--model", trained_run.path, "--out", path)
    made = kdgat("profile", clean, unlabelled, *words, "--alarms-per-hour", "100", status=0)
    assert "a budget of 100 benign windows in alarm per hour" in made.stdout
    assert [drive.name for drive in Profile.read(path).drives] == ["drive.parquet", "unlabelled.parquet"]
    again = kdgat("profile", clean, *words, "--grow", path, status=0)
    assert "a budget of 40 benign windows in alarm per hour" in again.stdout
    assert len(Profile.read(path).drives) == 2
    assert [one.operating_point.alarms_per_hour for one in thresholds_of(Profile.read(path))] == [40.0]
    data = ("--run", trained_run.path, "--data-root", data_root)
    used = kdgat("evaluate", "can", *data, "--profile", path, "--tables", "--quiet", status=0)
    assert "clean minutes of drive.parquet, 1," in used.stdout
    assert "what hides behind the F1" in used.stdout
    trained = next((data_root / "synthetic").glob("train_01*"))
    refused = kdgat("profile", trained, "--model", trained_run.path, "--out", tmp_path / "none.json", status=1)
    assert "the run was trained on it" in refused.stderr
    assert not (tmp_path / "none.json").exists()
