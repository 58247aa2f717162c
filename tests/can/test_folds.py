"""Configurations are judged by vehicles that are left out of the training recordings; no test recording is read."""

import copy
from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.can.evaluation.results import Results
from kdgat.can.family import FAMILY
from kdgat.can.folds import VEHICLES, judge_vehicles, vehicle_folds
from kdgat.can.inputs import recording_inputs
from kdgat.canbus.catalog import HELD_OUT
from kdgat.canbus.simulation import write_dataset
from kdgat.family import Sweep
from kdgat.run import Interval, OutputDirectory, run_locally
from tests.can.example_results import example
from tests.can.small_runs import small_config


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data root with recordings of alder and birch that train, and of others that test."""
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, "synthetic", "tiny")
    return root


def roles(inputs: object) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for key in inputs:  # type: ignore[attr-defined]
        role, scenario, name = key.split("/", 2)
        found.setdefault(f"{role} {scenario}" if role == "test" else role, set()).add(name.rpartition("-")[2])
    return found


def test_each_vehicle_of_the_training_recordings_is_left_out_once_and_no_test_recording_is_read(
    data_root: Path,
) -> None:
    folds = vehicle_folds(small_config(data_root))
    assert list(folds) == ["alder", "birch"]
    for name, other in (("alder", "birch"), ("birch", "alder")):
        inputs = recording_inputs(folds[name].data)
        assert roles(inputs) == {"train": {other}, f"test {HELD_OUT}": {name}}
        assert not any(Path(one.path).name.startswith("test_") for one in inputs.values())


def test_a_vehicle_that_is_held_out_for_the_end_is_not_read_either(data_root: Path) -> None:
    folds = vehicle_folds(small_config(data_root, hold_out=("dogwood",)))
    assert "dogwood" not in folds
    for fold in folds.values():
        names = {name for found in roles(recording_inputs(fold.data)).values() for name in found}
        assert names == {"alder", "birch", "elm"}  # recordings of tests train where a vehicle is held out


def test_without_two_vehicles_there_is_no_objective_and_the_fix_is_said(data_root: Path) -> None:
    with pytest.raises(UserError, match=r"known: alder; .* or give --objective validation"):
        vehicle_folds(
            small_config(
                data_root,
                leave_out=tuple(path.name for path in (data_root / "synthetic").iterdir() if "birch" in path.name),
            )
        )
    config = small_config(data_root, "stages=[normal]")
    with pytest.raises(UserError, match="needs the stage evaluation"):
        Sweep.of(FAMILY, [({}, config)], VEHICLES)
    with pytest.raises(UserError, match="no stage of this run is validated"):
        Sweep.of(FAMILY, [({}, small_config(data_root, "stages=[autoencoder]"))], "validation")


def test_trials_share_the_preparation_of_each_fold_and_no_fusion_is_trained(data_root: Path) -> None:
    configs = [
        ({}, small_config(data_root, f"training.learning_rate={rate}", "stages=[normal, fusion, evaluation]"))
        for rate in ("1e-3", "3e-4")
    ]
    names = [stage.name for stage in Sweep.of(FAMILY, configs, VEHICLES).run.plan]
    assert [name for name in names if "prepare" in name] == ["alder-prepare", "birch-prepare"]
    assert "birch-normal-large-seed0-trial001" in names
    assert not any("fusion" in name for name in names)


def test_the_objective_is_the_mean_over_vehicles_with_an_interval_over_seeds() -> None:
    results = {}
    for name, mean, std in (("alder", 0.9, 0.03), ("birch", 0.8, 0.04)):
        content = copy.deepcopy(example())
        scenario = content["scenarios"].pop("test_01")
        values = [mean - std, mean, mean + std]
        spread = {"mean": mean, "std": std, "min": mean - std, "max": mean + std, "count": 3, "values": values}
        scenario["over_seeds"]["f1"] = spread
        content["detector"]["seeds"] = [0, 1, 2]
        content["scenarios"] = {HELD_OUT: scenario}
        content["models"] = {}
        results[name] = Results.model_validate({**content, "family": "can"})
    whole, alder, birch = judge_vehicles(results)
    assert whole.value == pytest.approx(0.85)
    assert whole.seeds is not None
    expected = Interval.of_moments(0.85, 0.025, 3)  # of the mean of two that vary by 0.03 and 0.04
    assert (whole.seeds.low, whole.seeds.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert whole.by_seed == pytest.approx({0: 0.815, 1: 0.85, 2: 0.885})
    assert (alder.name, alder.value, birch.name, birch.value) == ("F1 alder", 0.9, "F1 birch", 0.8)
    del results["birch"].scenarios[HELD_OUT]
    assert judge_vehicles(results) == []


@pytest.mark.nightly
def test_a_trial_is_trained_without_each_vehicle_and_scored_on_it(data_root: Path, tmp_path: Path) -> None:
    sweep = Sweep.of(FAMILY, [({}, small_config(data_root, "seeds=[0, 1]"))], VEHICLES)
    output = OutputDirectory(tmp_path)
    run_locally(sweep.run, tmp_path)
    [outcome] = sweep.finish(output)
    assert [one.name for one in outcome.measures] == ["F1, vehicles left out", "F1 alder", "F1 birch"]
    assert outcome.measures[0].seeds is not None
    assert outcome.measures[0].seeds.count == 2
    written = (tmp_path / "trials" / "000" / "birch" / "results.json").stat().st_mtime_ns
    assert sweep.finish(output)[0].measures == outcome.measures
    assert (tmp_path / "trials" / "000" / "birch" / "results.json").stat().st_mtime_ns == written
