"""A pool of jobs on a real Slurm: workers that die are replaced, and the preparation has the same bytes."""

import os
import signal
import threading
from pathlib import Path

import pytest
from prefect import flow

from flows.node_image import NodeImage
from flows.pool import Pool
from kdgat.cluster import Resources, StopRequest
from kdgat.cluster.script import pool_name
from kdgat.stage.runner import run_stage
from kdgat.training.parts import missing_parts
from tests.slurm.processes import command_line, environment, pids
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import ENVIRONMENT, site
from tests.support.preparations import artifacts, make_preparation, parts_function
from tests.support.waiting import wait_until

RESOURCES = Resources(walltime_s=600, memory_mib=1024, cores=1, gpus=0)
NUM_WORKERS = 3
WORKER = "distributed.cli.dask_worker"


def workers(name: str) -> list[int]:
    """Return the Dask workers of a pool."""
    return [pid for pid in pids() if WORKER in command_line(pid) and environment(pid).get("SLURM_JOB_NAME") == name]


@pytest.mark.parametrize(("family", "times"), [("can", 8), pytest.param("lap", 40, marks=pytest.mark.nightly)])
def test_workers_that_are_each_killed_once_are_replaced_and_change_no_byte(
    tmp_path: Path, slurm: PrivateSlurm, prefect_server: object, family: str, times: int
) -> None:
    alone, pooled = (make_preparation(family, tmp_path / name, times) for name in ("alone", "pooled"))
    run_stage(alone, quiet=True)
    name, function = pool_name(pooled.path), parts_function(family)
    killed: set[int] = set()
    jobs: set[str] = set()
    ended = threading.Event()

    def kill_each_once() -> None:
        wait_until(lambda: ended.is_set() or any(pooled.parts_path.rglob("*.json")), "a part")
        while not ended.wait(0.2):
            jobs.update(job["id"] for job in slurm.jobs())
            for pid in workers(name):
                if len(killed) < NUM_WORKERS and pid not in killed:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)

    @flow
    def making() -> None:
        where = site(poll_interval_s=1.0)
        pool = Pool(where, NUM_WORKERS, tmp_path / "slurm", NodeImage(where), ENVIRONMENT)
        pool.make_parts(function, pooled, RESOURCES, StopRequest(), lines.append)

    lines: list[str] = []
    thread = threading.Thread(target=kill_each_once, daemon=True)
    thread.start()
    try:
        making()
    finally:
        ended.set()
        thread.join()
    assert len(killed) == NUM_WORKERS, lines
    assert len(jobs) > NUM_WORKERS, lines  # each that died was replaced
    assert any("asked for again" in line for line in lines)
    assert len(missing_parts(function, str(pooled.path))) <= NUM_WORKERS
    wait_until(lambda: slurm.jobs() == [], "an empty queue")
    run_stage(pooled, quiet=True)
    assert artifacts(pooled) == artifacts(alone)


@pytest.mark.nightly
def test_a_pool_whose_jobs_all_fail_is_given_up_and_the_stage_makes_all_parts(
    tmp_path: Path, slurm: PrivateSlurm, prefect_server: object
) -> None:
    pooled, lines = make_preparation("lap", tmp_path), list[str]()

    @flow
    def making() -> None:
        where = site(poll_interval_s=0.5, prologue=["exit 3"])
        pool = Pool(where, NUM_WORKERS, tmp_path / "slurm", NodeImage(where), ENVIRONMENT)
        pool.make_parts(parts_function("lap"), pooled, RESOURCES, StopRequest(), lines.append)

    making()
    assert "the stage makes what is missing" in lines[-1]
    wait_until(lambda: slurm.jobs() == [], "an empty queue")
    run_stage(pooled, quiet=True)
    assert artifacts(pooled)
