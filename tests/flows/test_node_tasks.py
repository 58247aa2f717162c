"""Tasks on Dask workers that know nothing of Prefect: what comes back, and what a worker that dies leaves."""

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import distributed
import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.states import State

from flows.node_tasks import WORKER_LOST, NodeTaskRunner
from tests.support.node_bodies import die, die_once, double, prefect_modules, refuse

pytestmark = pytest.mark.prefect

FAILURES = 1


@pytest.fixture
def runner(prefect_server: str) -> Iterator[NodeTaskRunner]:
    def cluster() -> distributed.LocalCluster:
        return distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
            scheduler_kwargs={"allowed_failures": FAILURES},
        )

    return NodeTaskRunner(cluster_class=cluster)


def test_a_body_runs_without_prefect_and_its_task_run_is_known_to_the_server(runner: NodeTaskRunner) -> None:
    @flow
    def doubling() -> tuple[list[int], list[str]]:
        with runner:
            doubled = [runner.submit(task(double, name="double"), {"number": number}) for number in range(5)]
            seen = runner.submit(task(prefect_modules), {"_": ""})
            return [future.result() for future in doubled], seen.result()

    numbers, modules = doubling()
    assert numbers == [0, 2, 4, 6, 8]
    assert modules == []
    with get_client(sync_client=True) as client:
        wait_for_states(client, "double", 5)


def wait_for_states(client, name: str, number: int) -> None:  # type: ignore[no-untyped-def]
    give_up_at = time.monotonic() + 60
    while True:
        runs = [run for run in client.read_task_runs() if run.name.startswith(name)]
        if len(runs) == number and all(run.state is not None and run.state.is_completed() for run in runs):
            return
        assert time.monotonic() < give_up_at, runs
        time.sleep(0.2)


def test_what_a_body_raises_fails_its_task_run(runner: NodeTaskRunner) -> None:
    @flow
    def refusing() -> State[int]:
        with runner:
            future = runner.submit(task(refuse), {"number": 3})
            future.wait()
            return future.state

    state = refusing(return_state=True)
    assert state.is_failed()


def test_a_worker_that_dies_is_replaced_and_its_task_made_by_another(runner: NodeTaskRunner, tmp_path: Path) -> None:
    @flow
    def dying() -> str:
        with runner:
            return runner.submit(task(die_once), {"folder": str(tmp_path)}).result()

    assert dying() == "made by another worker"


def test_a_task_that_kills_every_worker_ends_as_crashed(runner: NodeTaskRunner) -> None:
    @flow
    def dying() -> tuple[bool, str]:
        with runner:
            future = runner.submit(task(die), {"_": ""})
            future.wait()
            return future.state.is_crashed(), future.state.name

    assert dying() == (True, WORKER_LOST)
