import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kdgat.lap import stages
from kdgat.lap.errors import StartError
from kdgat.lap.specs import lap_run
from kdgat.lap.stages import EXPANDABLE_SEGMENTS, use_expandable_segments
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Failed, Finished
from kdgat.training.result import FitResult
from kdgat.training.trainer import fit
from kdgat.training.weights import load_weights, read_weights, save_weights
from tests.lap.runs import LARGE, MEDIUM, SMALL, SmallRun, small_config

TWO_IN_ONE = f"jobs=[[{SMALL}, {MEDIUM}]]"
GROUP = f"{SMALL}_and_{MEDIUM}-seed0"


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    run = SmallRun(small_config(stages=[SMALL, MEDIUM]), tmp_path_factory.mktemp("chain"))
    run.up_to(f"{MEDIUM}-seed0")
    return run


def weights_file(directory: RunDirectory, stage: str) -> bytes:
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    return (directory.path / outcome.artifacts[f"weights-{stage}"]).read_bytes()


def test_a_stage_starts_from_the_best_weights_of_the_one_before(
    chain: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, torch.Tensor]] = []

    def noting(module: Any, *arguments: Any, **named: Any) -> FitResult:
        started.append({name: tensor.clone() for name, tensor in module.model.state_dict().items()})
        return fit(module, *arguments, **named)

    monkeypatch.setattr(stages, "fit", noting)
    again = SmallRun(small_config(stages=[SMALL, MEDIUM]), tmp_path)
    again.finished = {name: directory for name, directory in chain.finished.items() if not name.startswith(MEDIUM)}
    assert isinstance(again.attempt(f"{MEDIUM}-seed0"), Finished)
    before, _ = load_weights(chain.finished[f"{SMALL}-seed0"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in started[0].items())
    assert again.finished[f"{MEDIUM}-seed0"].weights_path.read_bytes() == weights_file(
        chain.finished[f"{MEDIUM}-seed0"], MEDIUM
    )


def test_weights_say_what_they_are(chain: SmallRun) -> None:
    _, description = read_weights(chain.finished[f"{MEDIUM}-seed0"])
    assert (description["stage"], description["size"], description["monitor"]) == (MEDIUM, 24, "validation_loss")
    config = description["config"]
    assert (config["family"], config["kind"], config["model"]["dual"]["rounds"]) == ("lap", "dual", 2)
    read_by_the_network = dict(chain.planned(f"{MEDIUM}-seed0").config["graph"])
    del read_by_the_network["witnesses"]
    assert config["graph"] == read_by_the_network


def test_two_stages_in_one_job_train_the_same_weights_as_one_after_the_other(chain: SmallRun, tmp_path: Path) -> None:
    run = SmallRun(small_config([TWO_IN_ONE], stages=[SMALL, MEDIUM]), tmp_path)
    directory = run.up_to(GROUP)
    for stage in (SMALL, MEDIUM):
        assert weights_file(directory, stage) == weights_file(chain.finished[f"{stage}-seed0"], stage)
    outcome = directory.read_outcome()
    assert isinstance(outcome, Finished)
    assert outcome.artifacts["weights"] == outcome.artifacts[f"weights-{MEDIUM}"] == "weights.safetensors"
    assert {row["fit"] for row in directory.read_metrics()} == {SMALL, MEDIUM}
    assert outcome.metrics["validation_loss"] == outcome.metrics[f"{MEDIUM}_validation_loss"]


def test_a_job_killed_in_its_second_stage_does_not_train_the_first_again(
    chain: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def dying(*arguments: Any, **named: Any) -> FitResult:
        if named["name"] == MEDIUM:
            raise KilledError
        return fit(*arguments, **named)

    run = SmallRun(small_config([TWO_IN_ONE], stages=[SMALL, MEDIUM]), tmp_path)
    for name in ("prepare-16", "prepare-24"):
        run.finished[name] = chain.finished[name]
    monkeypatch.setattr(stages, "fit", dying)
    with pytest.raises(KilledError):
        run.attempt(GROUP)
    directory = run.create(GROUP)
    checkpoints = {path: path.stat().st_mtime_ns for path in (directory.checkpoints_path / SMALL).iterdir()}
    monkeypatch.setattr(stages, "fit", fit)
    assert isinstance(run.attempt(GROUP), Finished)
    assert {path: path.stat().st_mtime_ns for path in (directory.checkpoints_path / SMALL).iterdir()} == checkpoints
    for stage in (SMALL, MEDIUM):
        assert weights_file(directory, stage) == weights_file(chain.finished[f"{stage}-seed0"], stage)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.dual.hidden=8", "model.dual.hidden is 8 and was 12"),
        ("model.kind=rows", "kind is rows and was dual"),
        ("graph.row_neighbours=12", "graph.row_neighbours is 12 and was 16"),
    ],
)
def test_weights_of_another_model_are_refused_before_anything_runs_naming_the_key(
    chain: SmallRun, override: str, words: str
) -> None:
    config = small_config([override, f"start_from={chain.finished[f'{SMALL}-seed0'].path}"], stages=[MEDIUM])
    with pytest.raises(StartError, match=words):
        lap_run(config)


def test_a_stage_refuses_weights_of_another_model_that_were_put_in_place(chain: SmallRun, tmp_path: Path) -> None:
    put = RunDirectory(tmp_path / "put")
    put.path.mkdir()
    _, description = read_weights(chain.finished[f"{SMALL}-seed0"])
    put.weights_path.write_bytes(chain.finished[f"{SMALL}-seed0"].weights_path.read_bytes())
    run = SmallRun(small_config([f"start_from={put.path}"], stages=[MEDIUM]), tmp_path)
    run.finished["prepare-24"] = chain.finished["prepare-24"]
    save_weights(put, torch.nn.Linear(1, 1), {**description["config"], "kind": "rows"})
    outcome = run.attempt(f"{MEDIUM}-seed0")
    assert isinstance(outcome, Failed)
    assert outcome.kind == "BAD_INPUT"
    assert "kind is dual and was rows" in outcome.evidence


@pytest.mark.parametrize(
    "override", ["model.kind=dense", "model.kind=rows", "training.precision=bf16-mixed", "training.accumulate=2"]
)
def test_every_kind_of_network_and_precision_trains_through_the_same_stage(
    chain: SmallRun, tmp_path: Path, override: str
) -> None:
    run = SmallRun(small_config([override], stages=[SMALL]), tmp_path)
    run.finished["prepare-16"] = chain.finished["prepare-16"]
    outcome = run.attempt(f"{SMALL}-seed0")
    assert isinstance(outcome, Finished)
    assert 0.0 < outcome.metrics["validation_loss"] < 10.0
    assert read_weights(run.finished[f"{SMALL}-seed0"])[1]["config"]["kind"] == run.run.config.model.kind  # type: ignore[attr-defined]


def write_index(run: SmallRun) -> None:
    records = [
        {
            "name": planned.name, "stage": planned.stage, "scale": planned.scale, "seed": planned.seed,
            "state": "finished" if planned.name in run.finished else "planned",
            "directory": None if planned.name not in run.finished
            else str(run.finished[planned.name].path.relative_to(run.path)),
        }
        for planned in run.run.plan
    ]  # fmt: skip
    index = {"family": "lap", "config": run.run.config.model_dump(mode="json"), "stages": records}
    (run.path / "run.json").write_text(json.dumps(index), encoding="utf-8")


def test_a_stage_starts_from_another_run_where_its_predecessor_is_not_chosen(chain: SmallRun, tmp_path: Path) -> None:
    write_index(chain)
    run = SmallRun(small_config([f"start_from={chain.path}"], stages=[MEDIUM]), tmp_path)
    assert weights_file(run.up_to(f"{MEDIUM}-seed0"), MEDIUM) == weights_file(chain.finished[f"{MEDIUM}-seed0"], MEDIUM)


def test_missing_weights_to_start_from_are_refused_before_anything_runs(chain: SmallRun, tmp_path: Path) -> None:
    write_index(chain)
    with pytest.raises(StartError, match=f"no finished {MEDIUM} of seed 5 .it has: none"):
        lap_run(small_config([f"start_from={chain.path}"], stages=[LARGE], seeds=[5]))
    with pytest.raises(StartError, match="no run and no weights are there"):
        lap_run(small_config([f"start_from={tmp_path / 'nothing'}"], stages=[LARGE]))


def test_cuda_grows_its_segments_unless_somebody_has_decided_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in stages.ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    use_expandable_segments()
    assert stages.os.environ["PYTORCH_CUDA_ALLOC_CONF"] == EXPANDABLE_SEGMENTS
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    use_expandable_segments()
    assert stages.os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
