"""A suspended run as Prefect itself would leave it, and as it is left; the buttons are in tests/deployments."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import Pause
from prefect.states import Scheduled

from flows import cancellation, suspension
from flows.cancellation import reason_to_stop, stopping_with_prefect
from flows.suspension import held, suspended_in_order
from kdgat.cluster import StopRequest
from kdgat.run import OutputDirectory, RunError
from tests.support.servers import PrefectServer
from tests.support.waiting import wait_until

SUSPENDED: State[Any] = State(
    type=StateType.PAUSED, name="Suspended", state_details=StateDetails(pause_reschedule=True)
)


@pytest.fixture
def client(prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    monkeypatch.setattr(cancellation, "POLL_S", 0.05)
    with get_client(sync_client=True) as client:
        yield client


@task
def waits_for(stop: StopRequest) -> str:
    assert stop.wait(60)
    return stop.reason


def run_of_deployment(client: SyncPrefectClient, body: Any) -> Any:
    """Run a flow as a worker does, in this process, and return what the server knows of it afterwards."""
    from prefect.flow_engine import run_flow

    deployment_id = client.create_deployment(client.create_flow(body), f"of-{body.name}")
    flow_run = client.create_flow_run_from_deployment(deployment_id)
    with suppress(Pause):
        run_flow(body, flow_run=flow_run)
    return client.read_flow_run(flow_run.id)


def prefects_own() -> FlowRunContext:
    context = FlowRunContext.get()
    assert context is not None
    return context


def suspend(client: SyncPrefectClient, own: FlowRunContext, state: State[Any] = SUSPENDED) -> None:
    assert own.flow_run is not None
    client.set_flow_run_state(own.flow_run.id, state, force=True)
    # From here on Prefect would end each task.
    wait_until(own.flow_run_suspension_request.is_requested, "that Prefect hears of it")


def suspended_once(client: SyncPrefectClient, name: str) -> Any:
    """Make a flow that is suspended while it runs."""

    @flow(name=name, persist_result=False)
    def body() -> str:
        own = prefects_own()
        with suspended_in_order():
            suspend(client, own)
        return "over"

    return body


def test_a_suspended_run_stops_its_tasks_in_order_and_stays_suspended(client: SyncPrefectClient) -> None:
    seen = []

    @flow(name="in-order", persist_result=False)
    def body() -> str:
        own = prefects_own()
        stop = StopRequest()
        with suspended_in_order(), stopping_with_prefect(stop):
            suspend(client, own)
            seen.append(waits_for(stop))
            seen.append(waits_for(stop))  # even one that begins after that
        return "over"

    run = run_of_deployment(client, body)
    assert seen == ["a suspension in Prefect"] * 2
    assert (run.state_type, run.state_name) == (StateType.PAUSED, "Suspended")
    assert "Resume goes on" in run.state.message
    states = [task_run.state_type for task_run in client.read_task_runs() if task_run.flow_run_id == run.id]
    assert states == [StateType.COMPLETED] * 2


def test_what_ends_in_an_error_while_it_is_suspended_stays_suspended(client: SyncPrefectClient) -> None:
    @flow(name="in-error", persist_result=False)
    def body() -> None:
        own = prefects_own()
        with suspended_in_order():
            suspend(client, own)
            raise RunError("the limit of the dataset is gone")

    assert run_of_deployment(client, body).state_name == "Suspended"


def test_a_run_that_is_resumed_before_it_has_stopped_leaves_the_say_to_its_next_process(
    client: SyncPrefectClient,
) -> None:
    @flow(name="resumed", persist_result=False)
    def body() -> str:
        own = prefects_own()
        with suspended_in_order():
            suspend(client, own)
            suspend(client, own, Scheduled(name="Resuming"))
            assert reason_to_stop() == "a suspension in Prefect"
        return "over"

    assert run_of_deployment(client, body).state_name == "Resuming"


def test_a_resume_that_comes_while_a_run_is_said_to_be_suspended_is_not_lost(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, resumed = SyncPrefectClient.set_flow_run_state, []

    def put_late(self: SyncPrefectClient, flow_run_id: Any, state: State[Any], force: bool = False) -> Any:
        if state.message == suspension.SAVED and not resumed:
            resumed.append(client.resume_flow_run(flow_run_id))
        return put(self, flow_run_id, state, force=force)

    monkeypatch.setattr(SyncPrefectClient, "set_flow_run_state", put_late)

    run = run_of_deployment(client, suspended_once(client, "resumed-at-once"))
    assert len(resumed) == 1
    assert (run.state_type, run.state_name) == (StateType.SCHEDULED, "Resuming")
    assert run.next_scheduled_start_time is not None  # a worker will take it


def test_a_silent_api_is_asked_again_before_a_suspended_run_would_end(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspension, "POLL_S", 0.02)
    read, errors = SyncPrefectClient.read_flow_run_states, [httpx.ConnectError("no"), httpx.ReadTimeout("no")]

    def read_late(self: SyncPrefectClient, flow_run_id: Any) -> Any:
        if errors:
            raise errors.pop()
        return read(self, flow_run_id)

    monkeypatch.setattr(SyncPrefectClient, "read_flow_run_states", read_late)

    assert run_of_deployment(client, suspended_once(client, "not-heard")).state_name == "Suspended"
    assert errors == []


def test_an_api_that_stays_silent_lets_a_run_end(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise httpx.ConnectError("no")

    monkeypatch.setattr(SyncPrefectClient, "read_flow_run_states", refuse)
    monkeypatch.setattr(suspension, "API_TIMEOUT_S", 0.0)

    @flow(name="never-heard", persist_result=False)
    def body() -> str:
        with suspended_in_order():
            return "over"

    assert run_of_deployment(client, body).state_type == StateType.COMPLETED


def test_nothing_is_different_where_nobody_suspends(client: SyncPrefectClient) -> None:
    @flow(name="undisturbed", persist_result=False)
    def body(fails: bool = False) -> str:
        with suspended_in_order():
            assert reason_to_stop() == ""
            if fails:
                raise RunError("wrong")
        return "over"

    assert run_of_deployment(client, body).state_type == StateType.COMPLETED
    assert body(return_state=True).is_completed()  # of no deployment
    with pytest.raises(RunError, match="wrong"):
        body(fails=True)


def test_only_a_run_that_had_a_process_before_waits_for_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = OutputDirectory(tmp_path)
    with output.lock(), pytest.raises(RunError), held(output.lock):
        pass

    is_leaving = threading.Event()

    @contextmanager
    def before() -> Iterator[None]:
        with output.lock():
            threading.Thread(target=lambda: (time.sleep(0.2), is_leaving.set())).start()
            yield

    class Resumed:
        flow_run = type("", (), {"run_count": 2})

    monkeypatch.setattr(suspension, "POLL_S", 0.02)
    monkeypatch.setattr(suspension.FlowRunContext, "get", lambda: Resumed)
    begun = threading.Event()

    def first() -> None:
        with before():
            begun.set()
            is_leaving.wait()

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait()
    with held(output.lock):
        assert is_leaving.is_set()
    thread.join()
    monkeypatch.setattr(suspension, "SAVE_TIMEOUT_S", 0.05)
    with output.lock(), pytest.raises(RunError), held(output.lock):
        pass
