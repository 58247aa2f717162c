"""What `kdgat runs` says of a run that jobs were to watch, beside a squeue that lists its watcher, or not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flows.watcher import SCRIPT, STATE, WatcherState
from kdgat.cluster.script import watcher_name
from kdgat.lap.config import LapConfig
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from tests.support.command_line import Answer
from tests.support.commands import write_commands

GONE = "no watcher of it waits or runs: the same command (kdgat train ... --detach) goes on from there"


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OutputDirectory:
    """A run that was detached, of which one stage is left, and an empty queue."""
    output = OutputDirectory(tmp_path / "runs" / "first")
    output.slurm_path.mkdir(parents=True)
    (output.slurm_path / SCRIPT).touch()
    put(output, StageState.RUNNING)
    queue(tmp_path, monkeypatch, "true")
    return output


def put(output: OutputDirectory, state: StageState) -> None:
    record = StageRecord(name="gat", stage="gat", scale="large", seed=0, state=state)
    output.write_index(RunIndex(family="lap", config=LapConfig().model_dump(mode="json"), stages=[record]))


def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setenv("PATH", write_commands(tmp_path / "bin", squeue=answer))


def test_a_detached_run_that_nobody_watches_is_told_of_with_how_to_go_on(
    output: OutputDirectory, kdgat: Callable[..., Answer]
) -> None:
    expected = f"{output.path} is not done (running, 0 of 1 stages done): {GONE}\n"
    assert kdgat("runs", "list", str(output.path.parent), status=0).stderr == expected
    shown = kdgat("runs", "show", str(output.path), status=0)
    assert shown.stderr == expected
    assert shown.stdout.endswith(f"goes on  kdgat train lap ... --out {output.path}, as it was begun\n")
    assert "0 files" not in shown.stdout


def test_the_whole_command_goes_on_with_a_run_and_a_job_that_repeats_it_replaces_it_by_nothing(
    output: OutputDirectory, kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.note_command(["train", "lap", "-O", "a=b c", "--replan", "--out", "runs/first"])
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    output.note_command(["train", "lap"])
    command = "kdgat train lap -O 'a=b c' --out runs/first\n"
    assert kdgat("runs", "show", str(output.path), status=0).stdout.endswith(f"goes on  {command}")
    monkeypatch.chdir(output.path)
    assert kdgat("runs", "show", str(output.path), status=0).stdout.endswith(f" && {command}")


def test_a_name_that_is_a_run_of_the_listed_folder_is_answered_with_its_path(
    output: OutputDirectory, kdgat: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(output.path.parents[1])
    assert "`kdgat runs list` has it in runs: give runs/first" in kdgat("runs", "show", "first", status=1).stderr


def test_nothing_is_said_of_a_run_that_is_watched_is_done_has_stopped_or_was_never_detached(
    output: OutputDirectory, kdgat: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> str:
        return kdgat("runs", "list", str(output.path.parent), status=0).stderr

    with output.lock():
        assert said() == ""
    queue(tmp_path, monkeypatch, f"echo '7|PENDING||BeginTime|{watcher_name(output.path)}'")
    assert said() == ""
    queue(tmp_path, monkeypatch, "true")
    WatcherState(is_over=True).write(output.slurm_path / STATE)
    assert said() == ""
    (output.slurm_path / STATE).unlink()
    assert GONE in said()
    put(output, StageState.FINISHED)
    assert GONE not in said()
    put(output, StageState.RUNNING)
    (output.slurm_path / SCRIPT).unlink()
    assert said() == ""


def test_where_slurm_cannot_be_asked_nobody_claims_that_there_is_no_watcher(
    output: OutputDirectory, kdgat: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(tmp_path, monkeypatch, "exit 1")
    text = kdgat("runs", "list", str(output.path.parent), status=0).stderr
    assert "is not known: squeue does not say" in text
    assert "no watcher" not in text
