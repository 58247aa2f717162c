"""A stage that runs again says which key or input differed, and its run directory is found under a short name."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdgat import SavedRun
from kdgat.cluster import AttemptLedger, EndKind
from kdgat.family import Family
from kdgat.run import OutputDirectory, RunError, StageState, run_locally
from kdgat.run.attempts import seconds_run
from kdgat.run.plan import PlannedStage
from kdgat.run.rerun import changed_keys, describe_rerun
from tests.support.command_line import Answer

SHORT = ("prepare", "line", "evaluation")


@pytest.fixture
def out(toy: Family, tmp_path: Path) -> Path:
    """A run whose data were first drawn with another noise."""
    for noise in (0.1, 0.2):
        run_locally(toy.plan(toy.config.from_preset("quick", {}, [f"data.noise={noise}"])), tmp_path / "run")
    return tmp_path / "run"


def test_what_differed_is_named_for_each_stage(out: Path, kdgat: Callable[..., Answer]) -> None:
    output = OutputDirectory(out)
    index = output.read_index()
    prepare, *others = index.stages
    text = describe_rerun(output, index, prepare)
    assert "noise 0.1 -> 0.2" in text
    assert all("has other content (../prepare-" in describe_rerun(output, index, one) for one in others)
    answer = kdgat("runs", "why", str(out), prepare.name, status=0)
    assert answer.stdout == f"{prepare.name}: {text}\n"
    assert len(kdgat("runs", "why", str(out), status=0).stdout.splitlines()) == len(index.stages)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({}, {"model": {"degree": 3}}, [("model.degree", None, 3)]),
        ({"model": {"degree": 3}}, {"model": {}}, [("model.degree", 3, None)]),
        ({"model": {}}, {}, [("model", {}, None)]),
    ],
)
def test_a_mapping_that_got_its_first_key_is_told_by_that_key_alone(
    before: dict[str, Any], after: dict[str, Any], said: list[Any]
) -> None:
    earlier, later = (PlannedStage("a", "a", "small", 0, config) for config in (before, after))
    assert list(changed_keys(earlier, later)) == said


def test_a_plan_says_which_stages_that_are_done_run_again_and_why(out: Path, kdgat: Callable[..., Answer]) -> None:
    words = ("plan", "toy", "--out", str(out))
    for noise in (0.2, 0.1):  # both have finished here
        assert kdgat(*words, "-O", f"data.noise={noise}", status=0).stdout.endswith("Nothing is left.\n")
    said = kdgat(*words, "-O", "data.noise=0.3", status=0).stdout
    assert "noise 0.2 -> 0.3): prepare" in said
    assert "Runs again (after prepare): line-seed0" in said
    assert said.count("runs again") == 3
    assert "Nothing is left" not in said


def test_a_plan_says_that_a_change_begins_a_stage_anew_that_is_half_done(
    out: Path, kdgat: Callable[..., Answer]
) -> None:
    output = OutputDirectory(out)
    index = output.read_index()
    record = index.record("line-seed0")
    output.stage_directory(record).outcome_path.unlink()
    record.state = StageState.PAUSED
    output.write_index(index)
    words = ("plan", "toy", "--out", str(out), "-O", "data.noise=0.2")
    same = kdgat(*words, status=0).stdout
    assert re.search(r"line-seed0 .* paused ", same)
    assert "Runs again" not in same
    other = kdgat(*words, "-O", "training.learning_rate=0.5", status=0).stdout
    assert re.search(r"line-seed0 .* runs again ", other)
    assert "learning_rate" in other.partition("Runs again")[2]


def test_stages_that_ran_once_or_were_taken_say_so(toy: Family, tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    run_locally(run, tmp_path, only=["prepare"])
    assert "prepare: ran for the first time here" in kdgat("runs", "why", str(tmp_path), "prepare", status=0).stdout
    run_locally(run, tmp_path)
    assert "prepare: was taken from an earlier command" in kdgat("runs", "why", str(tmp_path), status=0).stdout


def test_a_run_that_was_resumed_began_with_its_first_attempt_and_counts_all_of_them(
    toy: Family, tmp_path: Path, kdgat: Callable[..., Answer]
) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    output, began = OutputDirectory(tmp_path), 1_000_000_000.0
    directory = run_locally(run, tmp_path, only=["prepare"])["prepare"]
    directory.outcome_path.unlink()
    (first,) = AttemptLedger(directory).records
    first.started, first.ended, first.end = began, began + 60, EndKind.PAUSED
    directory.attempts_path.write_text(first.model_dump_json() + "\n")
    for _ in range(2):  # resumed, and once more when there is nothing to do
        run_locally(run, tmp_path)
    (shown,) = json.loads(kdgat("runs", "list", str(tmp_path), "--json", status=0).stdout)
    assert shown["created"] == "2001-09-09T01:46:40+00:00"
    assert list(SavedRun(tmp_path).stages["attempts"]) == [2, 1, 1]
    assert seconds_run(output, output.read_index().stages) > 60
    assert re.search(r"took +1 min \d+ s\n", kdgat("runs", "show", str(tmp_path), status=0).stdout)
    run_index = output.read_index()
    run_index.record("prepare").state = StageState.FINISHED
    output.write_index(run_index)
    answer = kdgat("runs", "why", str(tmp_path), "prepare", status=0)
    assert answer.stdout == "prepare: ran for the first time here; attempt 2 went on with it\n"


def test_the_newest_run_directory_of_a_stage_has_a_short_name(
    out: Path, kdgat: Callable[..., Answer], tmp_path: Path
) -> None:
    output = OutputDirectory(out)
    for short, record in output.read_index().short_names().items():
        link = output.latest_path / short
        assert link.readlink().parts[:2] == ("..", "stages")
        assert link.samefile(output.stage_directory(record).path)
        for name in (short, record.name):
            assert kdgat("runs", "path", str(out), name, status=0).stdout.strip() == str(
                output.stage_directory(record).path
            )
    moved = out.rename(tmp_path / "moved")
    assert all((link / "spec.json").is_file() for link in (moved / "latest").iterdir())
    listed = kdgat("runs", "path", str(moved), status=0).stdout.splitlines()
    assert listed == [f"{link.name}: {link.resolve()}" for link in (moved / "latest" / name for name in SHORT)]
    refused = kdgat("runs", "path", str(moved), "prepar", status=1).stderr
    assert f"no stage 'prepar'; stages: {', '.join(SHORT)}" in refused


def test_where_there_are_no_links_the_directory_is_found_by_the_command(
    toy: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kdgat: Callable[..., Answer]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    run_locally(toy.plan(toy.config.from_preset("quick", {})), tmp_path, only=["prepare"])
    assert not list((tmp_path / "latest").iterdir())
    assert Path(kdgat("runs", "path", str(tmp_path), "prepare", status=0).stdout.strip(), "spec.json").is_file()
    with pytest.raises(RunError, match=r"no stage .other.; stages: prepare, line, evaluation"):
        OutputDirectory(tmp_path).read_index().find("other")


def test_runs_are_looked_for_past_links(out: Path, kdgat: Callable[..., Answer]) -> None:
    assert kdgat("runs", "list", str(out.parent), "--json", status=0).stdout.count('"path"') == 1
