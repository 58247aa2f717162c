"""What a command begins before there is a flow to show it: real stages of the toy family, no Prefect."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.attempts import AttemptBody, AttemptResult
from flows.open_run import OpenRun, head_start, opened_ahead
from kdgat.cluster import AttemptRecord, ResourceRequest, Site
from kdgat.family import Family
from kdgat.run import OutputDirectory, Run, RunError, StageState
from tests.support.toy import LONG
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes
LOCAL = Site(name="local")


@contextmanager
def begun(run: Run, out: Path, site: Site = LOCAL) -> Iterator[OpenRun]:
    output = OutputDirectory(out)
    with head_start(run, output, site, ResourceRequest(), None, 0):
        opened = opened_ahead(output)
        assert opened is not None
        yield opened


def state(opened: OpenRun, name: str) -> StageState:
    return opened.execution.index.record(name).state


@pytest.fixture
def run(toy: Family) -> Run:
    return toy.plan(toy.config.from_preset("quick", {}, LONG))


def test_stages_end_and_the_next_begin_before_anybody_follows_who_then_hears_all_of_it(
    run: Run, tmp_path: Path
) -> None:
    logged: list[str] = []
    attempts: list[tuple[int, list[str]]] = []

    def context(record: AttemptRecord, body: AttemptBody) -> AttemptResult:
        lines: list[str] = []
        attempts.append((record.number, lines))
        return body(lines.append, lambda progress: None, lambda name, message: None)

    with begun(run, tmp_path / "out") as opened:
        wait_until(lambda: state(opened, "line-seed0") is StageState.RUNNING, "the second stage")
        opened.take_over()
        assert list(opened.begun)[:2] == ["prepare", "line-seed0"]
        ends = [stage.follow(lambda level, text: logged.append(text), context) for stage in opened.begun.values()]
        assert {end.kind for end in ends} == {"finished"}
        assert state(opened, "line-seed0") is StageState.FINISHED
    assert [number for number, _ in attempts] == [1] * len(ends)
    assert "finished" in "".join(attempts[0][1])
    assert any(text.startswith("run directory ") for text in logged)


def test_a_signal_before_the_flow_is_told_to_whoever_waits_and_stages_leave_with_their_checkpoints(
    run: Run, tmp_path: Path
) -> None:
    output = OutputDirectory(tmp_path / "out")
    with begun(run, output.path) as opened:
        wait_until(lambda: state(opened, "line-seed0") is StageState.RUNNING, "the second stage")
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            opened.require_wanted()
    assert output.read_index().record("line-seed0").state is StageState.PAUSED
    output.require_free()
    assert opened_ahead(output) is None


def test_an_error_that_ends_the_command_leaves_no_stage_behind(run: Run, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path / "out")

    def end(opened: OpenRun) -> None:
        wait_until(lambda: state(opened, "prepare") is StageState.RUNNING, "the first stage")
        raise OSError("no server")

    with pytest.raises(OSError, match="no server"), begun(run, output.path) as opened:
        end(opened)
    assert not {record.state for record in output.read_index().stages} & {StageState.RUNNING}
    output.require_free()


def test_what_begins_stages_imports_neither_prefect_nor_dask_nor_torch() -> None:
    code = "import sys, flows.open_run; print({'prefect', 'dask', 'torch'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


def test_another_command_is_refused_before_prefect_is_imported(run: Run, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path / "out")
    with output.lock(), pytest.raises(RunError, match="in use by pid"), begun(run, output.path):
        pass


def test_jobs_and_pools_wait_for_the_flow(run: Run, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path / "out")
    for site, pool in ((Site(name="here", scheduler="slurm"), 0), (LOCAL, 2)):
        with head_start(run, output, site, ResourceRequest(), None, pool):
            assert opened_ahead(output) is None
    assert not output.path.exists()


def test_an_error_of_who_shows_a_stage_ends_nothing_of_it(run: Run, tmp_path: Path) -> None:
    def broken(record: AttemptRecord, body: AttemptBody) -> AttemptResult:
        raise RuntimeError("the API is gone")

    with begun(run, tmp_path / "out") as opened:
        wait_until(lambda: state(opened, "line-seed0") is StageState.RUNNING, "the second stage")
        opened.take_over()
        ends = [stage.follow(lambda level, text: print(1 / 0), broken) for stage in opened.begun.values()]
        assert {end.kind for end in ends} == {"finished"}
        assert not opened.is_at_work("line-seed0")
