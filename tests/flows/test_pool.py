"""Parts that workers make ahead of a stage: the same bytes, whatever becomes of the workers."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import psutil
import pytest
from prefect import flow, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from flows.node_image import NodeImage
from flows.node_tasks import WORKER_LOST
from flows.parameters import LOCAL_SITE
from flows.pool import Pool
from kdgat.cluster import StopRequest
from kdgat.stage import RunDirectory
from kdgat.stage.runner import run_stage
from kdgat.training import Parts
from kdgat.training.parts import missing_parts
from tests.support.preparations import CAN_PARTS, LAP_PARTS, artifacts, make_preparation, parts_function
from tests.support.waiting import wait_until

pytestmark = pytest.mark.prefect

NUM_PARTS = {"can": CAN_PARTS, "lap": LAP_PARTS}


def workers() -> list[psutil.Process]:
    """Return the processes of the pool."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:  # it ended
            continue
    return found


@contextmanager
def in_background(action: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    yield
    thread.join()


class Made(NamedTuple):
    """What a pool said, and the flow run that it was a part of."""

    lines: list[str]
    flow_run_id: UUID


def make_parts(family: str, directory: RunDirectory, stop: StopRequest, num_workers: int = 3) -> Made:
    lines: list[str] = []
    environment = {"OMP_NUM_THREADS": "1"}
    pool = Pool(LOCAL_SITE, num_workers, directory.path.parent / "slurm", NodeImage(LOCAL_SITE), environment)

    @flow
    def making() -> UUID:
        pool.make_parts(parts_function(family), directory, None, stop, lines.append)
        return UUID(runtime.flow_run.id)

    return Made(lines, making())


@pytest.mark.parametrize("family", ["can", "lap"])
def test_workers_that_are_each_killed_once_change_no_byte(
    family: str, tmp_path: Path, prefect_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, pooled = (make_preparation(family, tmp_path / name) for name in ("alone", "pooled"))
    run_stage(alone, quiet=True)
    killed: list[int] = []

    def kill_each_once() -> None:
        wait_until(lambda: any(pooled.parts_path.rglob("*.json")), "a part")
        for process in workers():
            killed.append(process.pid)
            process.kill()

    with in_background(kill_each_once):
        made_ahead = make_parts(family, pooled, StopRequest())
    assert killed
    assert made_ahead.lines == [f"{NUM_PARTS[family]} parts are made ahead by up to 3 workers"]
    assert workers() == []
    # One that lost all three workers is given up by the pool, and says so; it is the stage that makes it.
    lost = missing_parts(parts_function(family), str(pooled.path))
    assert len(lost) <= 3
    expected = Counter({"Completed": NUM_PARTS[family] - len(lost), WORKER_LOST: len(lost)})
    wait_until(lambda: Counter(part_states(made_ahead).values()) == expected, "the states of all parts")
    made: list[str] = []
    make = Parts.make

    def noting(parts: Parts, name: str) -> None:
        made.append(name)
        make(parts, name)

    monkeypatch.setattr(Parts, "make", noting)
    run_stage(pooled, quiet=True)
    assert made == lost
    assert artifacts(pooled) == artifacts(alone)


def part_states(made: Made) -> dict[str, str]:
    """Return how the server names the states of the parts."""
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[made.flow_run_id])))
    return {run.name: run.state_name or "" for run in runs}


def test_each_part_is_a_task_run(tmp_path: Path, prefect_server: object) -> None:
    directory = make_preparation("lap", tmp_path)
    names = missing_parts(parts_function("lap"), str(directory.path))
    made = make_parts("lap", directory, StopRequest())
    wait_until(lambda: part_states(made) == dict.fromkeys(names, "Completed"), "the states of all parts")


def test_a_pool_that_is_asked_to_stop_leaves_at_once_and_keeps_what_is_made(
    tmp_path: Path, prefect_server: object
) -> None:
    directory, stop = make_preparation("can", tmp_path, times=33), StopRequest()

    def ask() -> None:
        wait_until(lambda: any(directory.parts_path.rglob("*.json")), "a part")
        stop.set("a test")

    with in_background(ask):
        make_parts("can", directory, stop, num_workers=1)
    assert any(directory.parts_path.rglob("*.json"))
    assert missing_parts(parts_function("can"), str(directory.path))
    assert workers() == []


def test_what_is_made_already_is_not_made_again(tmp_path: Path, prefect_server: object) -> None:
    directory = make_preparation("lap", tmp_path)
    make_parts("lap", directory, StopRequest())
    written = {path: path.stat().st_mtime_ns for path in directory.parts_path.rglob("*")}
    began = time.time()
    assert make_parts("lap", directory, StopRequest()).lines == []
    assert {path: path.stat().st_mtime_ns for path in directory.parts_path.rglob("*")} == written
    assert max(written.values()) < began * 1e9
