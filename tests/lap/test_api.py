from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from kdgat.assignment import CostError, InfeasibleError
from kdgat.lap.api import WarmStart
from kdgat.lap.family import FAMILY
from kdgat.lap.models.predictor import Predictor
from kdgat.lap.training.start import last_weights
from kdgat.run import OutputDirectory, RunError, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import Finished, Paused, RunDirectory, StageInputError
from tests.lap.small_evaluations import write_network


@pytest.fixture(scope="module")
def warm_start(tmp_path_factory: pytest.TempPathFactory) -> WarmStart:
    return WarmStart.load(write_network(tmp_path_factory.mktemp("weights")))


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (40, 40), (25, 60), (60, 25)])
@pytest.mark.parametrize("maximize", [False, True])
def test_any_shape_is_solved_to_the_optimum(warm_start: WarmStart, shape: tuple[int, int], maximize: bool) -> None:
    cost = np.random.default_rng(7).normal(size=shape)
    found = warm_start.solve(cost, maximize=maximize)
    rows, columns = linear_sum_assignment(cost, maximize=maximize)
    assert found.cost == pytest.approx(cost[rows, columns].sum())
    assert found.gap <= 1e-9
    assert found.u.shape == (shape[0],)
    assert found.v.shape == (shape[1],)


def test_forbidden_pairs_are_avoided(warm_start: WarmStart) -> None:
    generator = np.random.default_rng(3)
    cost, mask = generator.random((50, 70)), generator.random((50, 70)) < 0.6
    found = warm_start.solve(cost, mask)
    rows, columns = linear_sum_assignment(np.where(mask, np.inf, cost))
    assert found.cost == pytest.approx(cost[rows, columns].sum())
    assert not mask[found.rows, found.columns].any()


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("shape", [(80, 80), (60, 90), (90, 60)])
def test_the_prediction_reaches_the_solver_as_it_was_made(
    warm_start: WarmStart, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], maximize: bool
) -> None:
    cost = np.random.default_rng(1).random(shape)
    optimal = warm_start.solve(cost, maximize=maximize)
    predict = Predictor.predict

    def optimum(self: Predictor, costs: np.ndarray, mask: np.ndarray | None = None) -> object:
        prediction = predict(self, costs, mask)
        u, v = (optimal.v, optimal.u) if shape[0] > shape[1] else (optimal.u, optimal.v)
        sign = -1.0 if maximize else 1.0
        assert prediction.u.shape == u.shape
        return type(prediction)(sign * u, sign * v, prediction.seconds)

    monkeypatch.setattr(Predictor, "predict", optimum)
    again = warm_start.solve(cost, maximize=maximize)
    assert again.counters.seed == "prediction"
    assert again.seed_bound == pytest.approx(optimal.cost)


def test_mistakes_are_named_before_the_network_sees_them(warm_start: WarmStart) -> None:
    cost = np.ones((3, 3))
    cost[1, 2] = np.nan
    with pytest.raises(CostError, match=r"cost\[1, 2\] is nan"):
        warm_start.solve(cost)
    with pytest.raises(CostError, match="no entry"):
        warm_start.solve(np.zeros((0, 3)))
    mask = np.zeros((3, 3), bool)
    mask[1] = True
    with pytest.raises(InfeasibleError):
        warm_start.solve(np.ones((3, 3)), mask)


def write_run(path: Path, stages: list[tuple[str, int, float, bool]]) -> Path:
    """Write a run of training stages: name, seed, validation loss, whether it finished."""
    records = []
    for stage, seed, loss, is_finished in stages:
        directory = RunDirectory(path / "stages" / f"{stage}-{seed}")
        write_network(directory.path, seed, stage)
        artifacts = {"weights": directory.weights_path.name, f"weights-{stage}": directory.weights_path.name}
        finished = Finished(metrics={"validation_loss": loss}, artifacts=artifacts)
        directory.write_outcome(finished if is_finished else Paused(checkpoint="", reason="time is up"))
        state = StageState.FINISHED if is_finished else StageState.PAUSED
        folder = str(directory.path.relative_to(path))
        records.append(
            StageRecord(name=f"{stage}-seed{seed}", stage=stage, scale="8", seed=seed, directory=folder, state=state)
        )
    OutputDirectory(path).write_index(RunIndex(family="lap", config={}, stages=records))
    return path


def test_of_a_run_the_best_seed_of_the_last_finished_stage_is_used(tmp_path: Path) -> None:
    stages = [("small", 0, 0.1, True), ("small", 1, 0.2, True), ("mid", 0, 0.9, True), ("mid", 1, 0.8, True)]
    run = write_run(tmp_path / "run", [*stages, ("large", 0, 0.0, False)])
    assert last_weights(run) == run / "stages" / "mid-1" / "weights.safetensors"


def test_a_stage_and_a_file_are_taken_as_they_are(tmp_path: Path) -> None:
    weights = write_network(tmp_path / "stage")
    assert last_weights(weights) == last_weights(tmp_path / "stage") == weights


def test_what_holds_no_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageInputError, match="no run and no weights are there"):
        last_weights(tmp_path / "nothing")
    with pytest.raises(StageInputError, match="no run and no weights are there"):
        last_weights(tmp_path)
    run = write_run(tmp_path / "run", [("small", 0, 0.1, False)])
    with pytest.raises(StageInputError, match="no training stage has finished"):
        last_weights(run)
    OutputDirectory(run).write_index(RunIndex(family="can", config={}, stages=[]))
    with pytest.raises(RunError, match="family 'can'"):
        last_weights(run)


def test_the_network_is_a_torch_module_in_eval_mode(warm_start: WarmStart) -> None:
    network = FAMILY.load_model(warm_start.weights_path)
    assert not network.training
    assert network.state_dict().keys() == warm_start.predictor.model.state_dict().keys()
