"""A family that is one folder and one name in the registry: planned, trained, killed, resumed and reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kdgat.family import Family
from kdgat.family.report import write_report
from kdgat.run import FinishedRun, OutputDirectory, RunError, StageState, run_locally
from kdgat.run.plan import create_stage
from kdgat.stage import Finished, RunDirectory, StageInputError
from kdgat.stage.runner import verify_inputs
from tests.support.command_line import Answer
from tests.support.hashed_bytes import HashedBytes
from tests.support.toy import LONG


def test_it_is_planned_by_the_common_command(toy: Family, kdgat: Callable[..., Answer]) -> None:
    answer = kdgat("plan", "toy", "--points", 32, "--seeds", 0, 1, status=0)
    assert [line.split()[0] for line in answer.stdout.splitlines()[1:]] == [
        "prepare", "line-seed0", "evaluation-seed0", "line-seed1", "evaluation-seed1",
    ]  # fmt: skip


def test_its_mistakes_are_named_by_the_common_command(toy: Family, kdgat: Callable[..., Answer]) -> None:
    answer = kdgat("plan", "toy", "-O", "data.point=32", status=1)
    assert "unknown key 'point': did you mean 'points'?" in answer.stderr
    assert (
        "resources: unknown key 'lines': did you mean 'line'?"
        in kdgat("plan", "toy", "-O", "resources.lines.memory=4G", status=1).stderr
    )


def test_a_value_that_is_nothing_is_a_value(toy: Family, kdgat: Callable[..., Answer]) -> None:
    assert "data.points=0" in kdgat("plan", "toy", "--points", 0, status=1).stderr


def test_its_own_errors_are_mistakes_of_the_user_and_its_log_is_kept(toy: Family, tmp_path: Path) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}, ["data.noise=11"]))
    assert run_locally(run, tmp_path) == {}
    index = OutputDirectory(tmp_path).read_index()
    assert [record.state for record in index.stages] == [StageState.FAILED, StageState.BLOCKED, StageState.BLOCKED]
    assert index.stages[0].message == "data.noise=11.0: no line can be seen in this, give at most 10"
    assert "drawing 64 points" in OutputDirectory(tmp_path).stage_directory(index.stages[0]).log_path.read_text()


def test_a_part_of_a_finished_run_is_looked_at_again_without_forgetting_the_rest(toy: Family, tmp_path: Path) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    run_locally(run, tmp_path)
    run_locally(run, tmp_path, only=["prepare"])
    assert {record.state for record in OutputDirectory(tmp_path).read_index().stages} == {StageState.CACHED}
    toy.collect(OutputDirectory(tmp_path))
    with pytest.raises(RunError, match="unknown key 'prepar': did you mean 'prepare'"):
        run_locally(run, tmp_path, only=["prepar"])


def test_each_file_is_hashed_by_who_wrote_it_and_by_each_stage_that_reads_it_and_never_for_the_plan(
    toy: Family, tmp_path: Path, hashed: HashedBytes
) -> None:
    run = toy.plan(toy.config.from_preset("quick", {"seeds": [0, 1, 2]}, ["data.points=4096"]))
    finished = run_locally(run, tmp_path).values()
    written = read = 0
    for directory in finished:
        outcome = directory.read_outcome()
        assert isinstance(outcome, Finished)
        written += sum((directory.path / name).stat().st_size for name in outcome.artifacts.values())
        read += sum(source.resolve(directory.path).stat().st_size for source in directory.read_spec().inputs.values())
    assert len(finished) == 7
    assert hashed.num_bytes == written + read
    run_locally(run, tmp_path)  # the next command
    assert hashed.num_bytes == written + read


def test_an_input_is_read_again_by_the_next_attempt_only_where_it_changed(
    toy: Family, tmp_path: Path, hashed: HashedBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.base.hashes.SETTLED_S", -1.0)  # as if the store were some seconds old
    run = toy.plan(toy.config.from_preset("quick", {}))
    output = OutputDirectory(tmp_path)
    prepared = run_locally(run, tmp_path, only=["prepare"])
    directory, _ = create_stage(run, run.plan[1], prepared, output)
    counted = []
    for _ in range(3):
        before = hashed.num_bytes
        verify_inputs(directory.read_spec(), directory)
        counted.append(hashed.num_bytes - before)
    store = prepared["prepare"].path / "points.npy"
    assert counted == [store.stat().st_size, 0, 0]
    content = bytearray(store.read_bytes())
    content[-1] ^= 1
    store.write_bytes(content)
    with pytest.raises(StageInputError, match="the file was rewritten since"):
        verify_inputs(directory.read_spec(), directory)


def _cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-8])
    return "cut short"


def _empty(path: Path) -> str:
    path.write_bytes(b"")
    return "cut short"


def _remove(path: Path) -> str:
    path.unlink()
    return "gone"


def _change_and_keep_the_times(path: Path) -> str:
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return "changed"


@pytest.mark.parametrize("damage", [_cut, _empty, _remove, _change_and_keep_the_times])
@pytest.mark.parametrize(("stage", "file"), [("prepare", "points.npy"), ("line-seed0", "weights.safetensors")])
def test_what_is_gone_cut_or_changed_is_made_again_and_all_behind_it_stays(
    toy: Family, tmp_path: Path, stage: str, file: str, damage: Callable[[Path], str]
) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    first = run_locally(run, tmp_path)
    path = first[stage].path / file
    content, how = path.read_bytes(), damage(path)
    changed = path.read_bytes() if path.exists() else b""
    again = run_locally(run, tmp_path)
    assert {name: one.path for name, one in again.items()} == {name: one.path for name, one in first.items()}
    assert path.read_bytes() == content
    records = {record.name: (record.state, record.message) for record in OutputDirectory(tmp_path).read_index().stages}
    assert records.pop(stage) == (StageState.FINISHED, f"its {file} is {how}: made again")
    assert {state for state, _ in records.values()} == {StageState.CACHED}
    if how != "gone":
        assert path.with_name(f"{file}.changed").read_bytes() == changed


def test_a_copy_of_a_run_and_one_without_noted_hashes_are_finished(toy: Family, tmp_path: Path) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    first = run_locally(run, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")  # other inodes and times
    first["prepare"].hashes_path.unlink()  # as an older kdgat has left it
    np.save(first["prepare"].path / "points.npy", np.load(first["prepare"].path / "points.npy"))
    for name in ("run", "copy"):
        run_locally(run, tmp_path / name)
        index = OutputDirectory(tmp_path / name).read_index()
        assert {record.state for record in index.stages} == {StageState.CACHED}


def test_who_reads_a_file_that_was_cut_is_told_which_command_makes_it_again(toy: Family, tmp_path: Path) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    _cut(run_locally(run, tmp_path)["line-seed0"].weights_path)
    found = FinishedRun(OutputDirectory(tmp_path))
    with pytest.raises(RunError, match=r"weights.safetensors is cut short since .*run `kdgat train toy`"):
        found.artifact(next(found.records("line")), "weights")


def test_a_finished_stage_of_other_code_says_so(toy: Family, tmp_path: Path) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}))
    path = run_locally(run, tmp_path)["prepare"].provenance_path
    content = json.loads(path.read_text())
    content["attempts"][-1]["packages"]["torch"] = "2.0.0"
    path.write_text(json.dumps(content))
    run_locally(run, tmp_path)
    assert (
        OutputDirectory(tmp_path)
        .read_index()
        .record("prepare")
        .reason.startswith("finished before with other code: torch was 2.0.0, is ")
    )


def test_a_run_does_not_start_from_itself(toy: Family, tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    answer = kdgat("train", "toy", "--out", tmp_path, "-O", f"start_from={tmp_path}", status=1)
    assert "is --out itself: choose another --out" in answer.stderr


def test_a_run_in_this_process_is_finished_and_reported(toy: Family, tmp_path: Path) -> None:
    run = toy.plan(toy.config.from_preset("quick", {"seeds": [0, 1]}))
    finished = run_locally(run, tmp_path)
    assert list(finished) == [planned.name for planned in run.plan]

    results = toy.collect(OutputDirectory(tmp_path))
    assert toy.results.read(tmp_path / "results.json") == results
    assert [table.texts[0] for table in toy.tables(results)] == [["seed", "error"]]
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<h1>Lines through points</h1>" in page
    assert "line-seed1" in page


def test_what_has_finished_is_not_run_again(toy: Family, tmp_path: Path) -> None:
    config = toy.config.from_preset("quick", {})
    first = run_locally(toy.plan(config), tmp_path)
    saved_more_often = toy.config.from_preset(
        "quick", {}, ["training.checkpoint_interval_s=1", "resources.line.cores=2"]
    )
    again = run_locally(toy.plan(saved_more_often), tmp_path)
    assert {name: one.path for name, one in again.items()} == {name: one.path for name, one in first.items()}
    assert {record.state for record in OutputDirectory(tmp_path).read_index().stages} == {StageState.CACHED}
    trained_longer = toy.config.from_preset("quick", {}, ["training.max_epochs=5"])
    other = run_locally(toy.plan(trained_longer), tmp_path)
    assert other["prepare"].path == first["prepare"].path
    assert other["line-seed0"].path != first["line-seed0"].path


@pytest.mark.parametrize("ending", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
@pytest.mark.processes
def test_a_killed_stage_resumes_to_the_same_weights(toy: Family, tmp_path: Path, ending: signal.Signals) -> None:
    run = toy.plan(toy.config.from_preset("quick", {}, LONG))
    undisturbed = run_locally(run, tmp_path / "undisturbed", only=["line-seed0"])["line-seed0"]

    output = OutputDirectory(tmp_path / "killed")
    finished = run_locally(run, output.path, only=["prepare"])
    directory, _ = create_stage(run, run.plan[1], finished, output)
    stage = [sys.executable, "-m", "kdgat.stage", str(directory.path), "--quiet"]
    process = subprocess.Popen(stage, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not directory.newest_checkpoint() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(ending)
    process.wait()
    assert not directory.is_finished()

    resumed = run_locally(run, output.path)["line-seed0"]
    assert resumed.path == directory.path
    assert resumed.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()
    assert resumed.read_metrics() == undisturbed.read_metrics()
    assert isinstance(RunDirectory(resumed.path).read_outcome(), Finished)
