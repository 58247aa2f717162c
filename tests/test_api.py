"""`import kdgat`: the commands as calls, with the family of tests/toy, whose runs take a second."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kdgat
from kdgat.base import ConfigurationError
from kdgat.family import Family
from kdgat.family.report import write_report
from kdgat.run import OutputDirectory, RunError, run_locally
from kdgat.run.finished import FinishedRun
from tests.family.conftest import toy as toy

SHORT = {"training.max_epochs": 3, "training.patience": None}


@pytest.fixture
def run(toy: Family, tmp_path: Path) -> kdgat.SavedRun:
    return kdgat.train("toy", tmp_path / "run", points=64, seeds=[0, 1], overrides=SHORT, quiet=True)


def weights(path: Path) -> list[bytes]:
    finished = FinishedRun(OutputDirectory(path))
    return [finished.artifact(record, "weights").read_bytes() for record in finished.records("line")]


@pytest.mark.processes
def test_import_loads_nothing_and_a_plan_no_torch() -> None:
    heavy = "[name for name in ('torch', 'pandas', 'pydantic', 'prefect') if name in sys.modules]"
    script = f"import sys, kdgat; print({heavy}); kdgat.plan('lap'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]


def test_a_plan_is_that_of_the_command(toy: Family) -> None:
    planned = kdgat.plan("toy", points=64, seeds=[1], overrides={"training.max_epochs": 3})
    assert planned.plan == toy.plan(planned.config).plan
    assert [one.name for one in planned.plan] == ["prepare", "line-seed1", "evaluation-seed1"]
    assert planned.config.model_dump()["data"]["points"] == 64
    assert kdgat.plan("toy", config=planned.config.model_dump(mode="json")).config == planned.config
    assert repr(planned) == "Run(toy: prepare, line-seed1, evaluation-seed1)"


def test_a_plan_without_its_data_is_one_and_says_that_it_cannot_train(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(kdgat.plan("can", dataset="nowhere", data_root=tmp_path).plan) > 1
    assert "refuses this as long as that is so" in caplog.text
    assert "nowhere" in caplog.text


def test_the_face_lists_what_it_gives_alone() -> None:
    assert set(kdgat.__all__) <= set(dir(kdgat))
    assert not {"TYPE_CHECKING", "lazy_names"} & set(dir(kdgat))


def test_training_leaves_the_directory_of_the_command_behind(run: kdgat.SavedRun, toy: Family, tmp_path: Path) -> None:
    output = OutputDirectory(run.path)
    assert toy.results.read(output.results_path).seeds == [0, 1]
    assert output.report_path.is_file()
    run_locally(toy.plan(toy.config.from_data(run.config)), tmp_path / "again")
    assert weights(tmp_path / "again") == weights(run.path)


def test_a_run_may_be_read_by_whom_the_command_lets(run: kdgat.SavedRun) -> None:
    report = run.path / "report.html"
    report.unlink()
    write_report(run.path)
    assert {oct(path.stat().st_mode & 0o777) for path in run.path.rglob("*") if path.is_file()} == {"0o600"}
    (run.path / "run.json").chmod(0o640)
    write_report(run.path)
    assert report.stat().st_mode & 0o777 == 0o640


def test_a_run_is_read_as_data_frames(run: kdgat.SavedRun) -> None:
    assert run.state == "finished"
    assert list(run.stages.index) == ["prepare", "line-seed0", "evaluation-seed0", "line-seed1", "evaluation-seed1"]
    assert set(run.stages["state"]) == {"finished"}
    assert list(run.results.index) == ["error"]
    assert run.results.loc["error", "seeds"] == 2
    of_seed = run.metrics.groupby("seed")["validation_loss"].count()
    assert of_seed.to_dict() == {0: 3, 1: 3}
    assert run.validation is not None
    listed = kdgat.list_runs(run.path.parent)
    assert list(listed.index) == [str(run.path)]
    assert listed["config.data.points"].tolist() == ["64"]
    assert listed["validation"].tolist() == [run.validation.value]
    assert listed["validation_measure"].tolist() == [run.validation.name]


def test_the_same_call_trains_nothing_again_and_another_seed_alone(run: kdgat.SavedRun) -> None:
    before = weights(run.path)
    again = kdgat.train("toy", run.path, config=run.config, seeds=[0, 1, 2], quiet=True)
    assert again.stages["state"].tolist() == ["cached"] * 5 + ["finished"] * 2
    assert weights(run.path)[:2] == before
    assert again.results.loc["error", "seeds"] == 3


def test_a_part_of_a_run_has_no_results_yet(toy: Family, tmp_path: Path) -> None:
    run = kdgat.train("toy", tmp_path, only=["prepare"], points=64, quiet=True)
    assert (run.results.empty, run.metrics.empty, run.validation) == (True, True, None)
    with pytest.raises(RunError, match="no trained stage of seed 7: none has finished"):
        kdgat.load_model(run, seed=7)


def test_one_stage_may_be_named_alone(toy: Family, tmp_path: Path) -> None:
    run = kdgat.train("toy", tmp_path, only="prepare", points=64, quiet=True)
    assert run.stages.loc["prepare", "state"] == "finished"
    with pytest.raises(RunError, match="unknown key 'prepar': did you mean 'prepare'"):
        kdgat.train("toy", tmp_path, only="prepar", points=64, quiet=True)


def test_an_option_that_is_off_is_one_that_is_not_given() -> None:
    plain = kdgat.plan("lap").config
    assert kdgat.plan("lap", two_in_one=False).config == plain != kdgat.plan("lap", two_in_one=True).config


def test_paths_that_cannot_be_are_refused_as_by_the_command(
    toy: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match=r"^--config missing\.yaml: there is no such file or folder"):
        kdgat.plan("toy", config="missing.yaml")
    for out in (file, file / "below"):
        with pytest.raises(kdgat.UserError, match=f"^out {out}"):
            kdgat.train("toy", out, quiet=True)
        with pytest.raises(RunError, match="file"):
            kdgat.load_run(out)
    with pytest.raises(kdgat.UserError, match=r"^out is empty"):
        kdgat.train("toy", "", quiet=True)
    for look in (kdgat.load_model, kdgat.load_run):
        with pytest.raises(kdgat.UserError, match="is empty"):
            look("")
    assert list(tmp_path.iterdir()) == [file]


def test_a_stage_that_fails_is_an_error_with_its_sentence(toy: Family, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^prepare failed: data\.noise=11\.0: no line can be seen") as caught:
        kdgat.train("toy", tmp_path, overrides={"data.noise": 11.0}, quiet=True)
    assert isinstance(caught.value, kdgat.UserError)


def test_a_misspelt_option_key_or_family_is_answered_with_the_right_one(toy: Family, tmp_path: Path) -> None:
    with pytest.raises(kdgat.UserError, match="did you mean 'points'"):
        kdgat.train("toy", tmp_path, point=3)
    with pytest.raises(ConfigurationError, match=r"max_epochs"):
        kdgat.plan("toy", overrides={"training.max_epoch": 3})
    with pytest.raises(kdgat.UserError, match="can needs dataset and data_root, unless config gives it"):
        kdgat.train("can", tmp_path)
    with pytest.raises(ValueError, match=r"toy.*; did you mean 'toy'"):
        kdgat.plan("tyo")
    with pytest.raises(RunError, match=r"run\.json is missing"):
        kdgat.load_run(tmp_path)


def test_overrides_are_taken_as_the_command_takes_them_and_seeds_as_one_number(toy: Family) -> None:
    planned = kdgat.plan("toy", seeds=0, overrides=["training.max_epochs=3"])
    assert planned.config == kdgat.plan("toy", seeds=[0], overrides={"training.max_epochs": 3}).config
    with pytest.raises(ConfigurationError, match=r"max_epochs"):
        kdgat.plan("toy", overrides=["training.max_epoch=3"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("overrides", 3), ("overrides", "seeds=[1]"), ("overrides", [3]), ("seeds", "01"), ("seeds", 1.5), ("config", 3)],
)
def test_an_argument_of_another_kind_is_named_with_what_it_takes(toy: Family, name: str, value: Any) -> None:
    with pytest.raises(kdgat.UserError, match=f"^{name}=.*: give "):
        kdgat.plan("toy", **{name: value})
    with pytest.raises(kdgat.UserError, match=r"^data_root=3: give a path"):
        kdgat.plan("can", data_root=3)


def test_a_family_that_does_not_say_how_its_networks_are_made_is_named(run: kdgat.SavedRun) -> None:
    with pytest.raises(kdgat.UserError, match="toy says of no weights"):
        kdgat.load_model(run.path)


def test_a_network_is_loaded_from_run_stage_and_file(
    run: kdgat.SavedRun, toy: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kdgat.training import load_weights

    def load(weights: Path) -> torch.nn.Module:
        layer = torch.nn.Linear(1, 1)
        layer.load_state_dict(load_weights(weights)[0])
        return layer.eval()

    monkeypatch.setattr(toy, "load_model", load, raising=False)
    first = kdgat.load_model(run).state_dict()["weight"]
    named, second = (run.load_model(stage="line", seed=0), run.load_model(stage="line-seed1"))
    assert torch.equal(named.state_dict()["weight"], first)
    assert not torch.equal(second.state_dict()["weight"], first)
    file = next(Path(run.path).glob("stages/line-small-seed1-*/weights.safetensors"))
    assert torch.equal(kdgat.load_model(file).state_dict()["weight"], second.state_dict()["weight"])
    with pytest.raises(RunError, match="did you mean 'line'"):
        run.load_model("lines")
    with pytest.raises(RunError, match=r"no trained stage line of seed 7: seeds that have one: 0, 1$"):
        run.load_model(seed=7)


def test_who_detects_nothing_scores_no_data_of_others(run: kdgat.SavedRun) -> None:
    with pytest.raises(kdgat.UserError, match="scores no data of others"):
        kdgat.evaluate(run, os.curdir)
