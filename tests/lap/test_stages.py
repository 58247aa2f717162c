import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kdgat.lap.family import FAMILY
from kdgat.lap.inputs import lap_run
from kdgat.run import RunError, run_locally
from kdgat.stage import Failed, Finished, RunDirectory, StageInputError
from kdgat.training import load_weights, stage
from kdgat.training.fit import fit
from kdgat.training.state import FitResult
from kdgat.training.weights import read_weights, save_weights
from tests.lap.runs import LARGE, MEDIUM, SMALL, outcome_of, run_up_to, small_config

TWO_IN_ONE = f"jobs=[[{SMALL}, {MEDIUM}]]"
GROUP = f"{SMALL}_and_{MEDIUM}-seed0"


Chain = dict[str, RunDirectory]


@pytest.fixture(scope="module")
def chain_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chain")


@pytest.fixture(scope="module")
def chain(chain_path: Path) -> Chain:
    """Return the stages of a run up to the second training stage, by name."""
    return run_up_to(small_config(stages=[SMALL, MEDIUM]), chain_path, f"{MEDIUM}-seed0")


@pytest.fixture
def prepared(chain: Chain, chain_path: Path, tmp_path: Path) -> Path:
    """Return an output directory in which the preparations have finished, and nothing else."""
    for name in ("prepare-16", "prepare-24"):
        copied = tmp_path / chain[name].path.relative_to(chain_path)
        shutil.copytree(chain[name].path, copied)
    return tmp_path


def weights_file(directory: RunDirectory, name: str) -> bytes:
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    return (directory.path / outcome.artifacts[f"weights-{name}"]).read_bytes()


def test_a_stage_starts_from_the_best_weights_of_the_one_before(
    chain: Chain, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, torch.Tensor]] = []

    def noting(module: Any, *arguments: Any, **named: Any) -> FitResult:
        started.append({name: tensor.clone() for name, tensor in module.model.state_dict().items()})
        return fit(module, *arguments, **named)

    monkeypatch.setattr(stage, "fit", noting)
    again = run_up_to(small_config(stages=[SMALL, MEDIUM]), prepared, f"{MEDIUM}-seed0")
    before, _ = load_weights(chain[f"{SMALL}-seed0"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in started[1].items())
    assert again[f"{MEDIUM}-seed0"].weights_path.read_bytes() == weights_file(chain[f"{MEDIUM}-seed0"], MEDIUM)


def test_weights_say_what_they_are(chain: Chain) -> None:
    _, description = read_weights(chain[f"{MEDIUM}-seed0"])
    assert (description["stage"], description["size"], description["monitor"]) == (MEDIUM, 24, "validation_loss")
    config = description["config"]
    assert (config["family"], config["kind"], config["model"]["dual"]["rounds"]) == ("lap", "dual", 2)
    read_by_the_network = dict(chain[f"{MEDIUM}-seed0"].read_spec().config["graph"])
    del read_by_the_network["witnesses"]
    assert config["graph"] == read_by_the_network


def test_two_stages_in_one_job_train_the_same_weights_as_one_after_the_other(chain: Chain, prepared: Path) -> None:
    directory = run_up_to(small_config([TWO_IN_ONE], stages=[SMALL, MEDIUM]), prepared, GROUP)[GROUP]
    for name in (SMALL, MEDIUM):
        assert weights_file(directory, name) == weights_file(chain[f"{name}-seed0"], name)
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    assert outcome.artifacts["weights"] == outcome.artifacts[f"weights-{MEDIUM}"] == "weights.safetensors"
    assert {row["fit"] for row in directory.read_metrics()} == {SMALL, MEDIUM}
    assert outcome.metrics["validation_loss"] == outcome.metrics[f"{MEDIUM}_validation_loss"]


def test_a_job_killed_in_its_second_stage_does_not_train_the_first_again(
    chain: Chain, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def dying(*arguments: Any, **named: Any) -> FitResult:
        if named["name"] == MEDIUM:
            raise KilledError
        return fit(*arguments, **named)

    config = small_config([TWO_IN_ONE], stages=[SMALL, MEDIUM])
    monkeypatch.setattr(stage, "fit", dying)
    with pytest.raises(KilledError):
        run_up_to(config, prepared, GROUP)
    [directory] = map(RunDirectory, (prepared / "stages").glob(f"{SMALL}_and_*"))
    checkpoints = {path: path.stat().st_mtime_ns for path in (directory.checkpoints_path / SMALL).iterdir()}
    monkeypatch.setattr(stage, "fit", fit)
    run_up_to(config, prepared, GROUP)
    assert {path: path.stat().st_mtime_ns for path in (directory.checkpoints_path / SMALL).iterdir()} == checkpoints
    for name in (SMALL, MEDIUM):
        assert weights_file(directory, name) == weights_file(chain[f"{name}-seed0"], name)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.dual.hidden=8", "model.dual.hidden is 8 and was 12"),
        ("graph.row_neighbours=12", "graph.row_neighbours is 12 and was 16"),
    ],
)
def test_weights_of_another_model_are_refused_before_anything_runs_naming_the_key(
    chain: Chain, override: str, words: str
) -> None:
    config = small_config([override, f"start_from={chain[f'{SMALL}-seed0'].path}"], stages=[MEDIUM])
    with pytest.raises(StageInputError, match=words):
        lap_run(config)


def test_a_stage_refuses_weights_of_another_model_that_were_put_in_place(chain: Chain, prepared: Path) -> None:
    put = RunDirectory(prepared / "put")
    put.path.mkdir()
    _, description = read_weights(chain[f"{SMALL}-seed0"])
    put.weights_path.write_bytes(chain[f"{SMALL}-seed0"].weights_path.read_bytes())
    run = lap_run(small_config([f"start_from={put.path}"], stages=[MEDIUM]))
    save_weights(put, torch.nn.Linear(1, 1), {**description["config"], "kind": "rows"})
    run_locally(run, prepared)
    outcome = outcome_of(prepared, f"{MEDIUM}-seed0")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "BAD_INPUT"
    assert "kind is dual and was rows" in outcome.evidence


@pytest.mark.parametrize("override", ["training.precision=bf16-mixed", "training.accumulate=2"])
def test_every_precision_and_cut_of_a_batch_trains_through_the_same_stage(prepared: Path, override: str) -> None:
    config = small_config([override], stages=[SMALL])
    directory = run_up_to(config, prepared, f"{SMALL}-seed0")[f"{SMALL}-seed0"]
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    assert 0.0 < outcome.metrics["validation_loss"] < 10.0


def test_a_stage_starts_from_another_run_where_its_predecessor_is_not_chosen(
    chain: Chain, chain_path: Path, prepared: Path
) -> None:
    config = small_config([f"start_from={chain_path}"], stages=[MEDIUM])
    directory = run_up_to(config, prepared, f"{MEDIUM}-seed0")[f"{MEDIUM}-seed0"]
    assert weights_file(directory, MEDIUM) == weights_file(chain[f"{MEDIUM}-seed0"], MEDIUM)


@pytest.mark.usefixtures("chain")
def test_missing_weights_to_start_from_are_refused_before_anything_runs(chain_path: Path, tmp_path: Path) -> None:
    with pytest.raises(StageInputError, match=f"no finished {MEDIUM} of seed 5 .it has: none"):
        lap_run(small_config([f"start_from={chain_path}"], stages=[LARGE], seeds=[5]))
    with pytest.raises(StageInputError, match="no run and no weights are there"):
        lap_run(small_config([f"start_from={tmp_path / 'nothing'}"], stages=[LARGE]))


def test_a_run_does_not_start_from_itself(chain_path: Path, tmp_path: Path) -> None:
    config = small_config([f"start_from={chain_path}"], stages=[MEDIUM])
    assert FAMILY.plan_into(config, tmp_path).plan
    with pytest.raises(RunError, match=f"start_from={chain_path} is --out itself"):
        FAMILY.plan_into(config, chain_path)
