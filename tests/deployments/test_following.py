"""Runs of a real server whose states, logs and parts are set by hand: what is told of them, and how they end."""

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import LogCreate
from prefect.states import (
    AwaitingRetry,
    Completed,
    Running,
    Scheduled,
    Suspended,
    exception_to_crashed_state,
    exception_to_failed_state,
)

from flows.deployment import following
from flows.deployment.following import Following, as_end, plain_message
from flows.deployment.server_api import ServerApi, ServerError, UnreachableError, find_server
from flows.deployment.submission import SubmissionError, cancel, find_deployment
from kdgat.base.configuration import ConfigurationError
from kdgat.cli.run import RunRequestError, _active_run
from kdgat.run.end import RunEnd
from tests.support.servers import PrefectServer
from tests.support.waiting import wait_until


@flow
def night(out: str = "") -> None:
    """Do nothing."""


@pytest.fixture
def api(prefect_server: PrefectServer) -> ServerApi:
    found = ServerApi(find_server())
    assert found.address.url == prefect_server.url
    return found


@task
def part() -> None:
    """Do nothing."""


class Watched:
    """One run that is followed in another thread, and what was told and shown of it."""

    def __init__(self, api: ServerApi, run_id: object, *, is_night: bool = False) -> None:
        self.told: list[str] = []
        self.shown: list[Path] = []
        self.ends: list[RunEnd] = []
        watch = Following(api, str(run_id), None, is_night=is_night, show=self.shown.append, tell=self.told.append)
        self.thread = threading.Thread(target=lambda: self.ends.append(watch.wait()), daemon=True)
        self.thread.start()

    def end(self) -> RunEnd:
        self.thread.join(60.0)
        return self.ends[0]


def test_the_reason_of_a_failed_run_is_its_sentence_alone() -> None:
    sentence = "override training.max_epoch=5: unknown key 'max_epoch': did you mean 'max_epochs'?"
    error = ConfigurationError(sentence)
    # As Prefect's engine makes the states of flows that raise, or whose parameters are wrong.
    for message in ("Flow run encountered an exception:", "Validation of flow parameters failed with error:", ""):
        failed = asyncio.run(exception_to_failed_state(error, message=message))
        assert plain_message(failed.message or "") == sentence
    assert plain_message(asyncio.run(exception_to_crashed_state(error)).message or "") == sentence
    of_night = f"training: Flow run encountered an exception: StartError: {sentence}"
    assert plain_message(of_night) == f"training: {sentence}"


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (("COMPLETED", "Completed", "normal: F1 0.99"), RunEnd("completed", "normal: F1 0.99")),
        (("CANCELLED", "Cancelled", "stopped by SIGINT"), RunEnd("stopped", "stopped by SIGINT")),
        (("CANCELLED", "Cancelled", "Deployment concurrency limit reached."), "failed"),
        (("PAUSED", "Suspended", None), RunEnd("stopped", "suspended: Resume in the UI goes on with it")),
        (("CRASHED", "FlowProcessLost", "its process is gone"), RunEnd("failed", "its process is gone")),
        (("CRASHED", "Crashed", None), RunEnd("failed", "the run ended as Crashed")),
    ],
)
def test_a_state_says_how_a_run_ended(state: tuple[str, str, str | None], end: RunEnd | str) -> None:
    found = as_end(dict(zip(("type", "name", "message"), state, strict=True)))
    assert end in (found, found.state)


def test_a_night_tells_what_it_finds_and_shows_the_run_that_trains(api: ServerApi, tmp_path: Path) -> None:
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(night, state=Running())
        log(client, run.id, "Beginning flow run 'calm-otter' for flow 'night'", "recordings: 2 new")
        watched = Watched(api, run.id, is_night=True)
        wait_until(lambda: watched.told, "what the night says")
        assert watched.shown == []
        below = client.create_task_run(task=part, flow_run_id=run.id, dynamic_key="0", state=Running())
        client.create_flow_run(night, parameters={"out": str(tmp_path)}, parent_task_run_id=below.id, state=Running())
        wait_until(lambda: watched.shown, "its training")
        log(
            client,
            run.id,
            "Engine execution exited with unexpected exception\nTraceback (most recent call last):\n  ...",
        )
        log(client, run.id, "refused a.parquet: it ends too early")
        wait_until(lambda: len(watched.told) > 1, "more of it")
        client.set_flow_run_state(run.id, Completed(message="m-1 went into service: better"), force=True)
    assert watched.end() == RunEnd("completed", "m-1 went into service: better")
    assert watched.told == ["recordings: 2 new", "refused a.parquet: it ends too early"]
    assert watched.shown == [tmp_path]


def test_a_run_that_no_worker_has_taken_is_cancelled_at_once(api: ServerApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PATIENCE_S", 0.0)
    with get_client(sync_client=True) as client:
        run = client.create_flow_run(night, state=Scheduled())
    watched = Watched(api, run.id)
    wait_until(lambda: watched.told, "that nobody has taken it")
    assert "make deployed" in watched.told[0]
    cancel(api, str(run.id))
    assert watched.end().state == "stopped"


def test_a_run_that_is_suspended_or_waits_can_be_cancelled_and_one_that_a_schedule_has_for_later_is_left(
    api: ServerApi,
) -> None:
    with get_client(sync_client=True) as client:
        made = client.create_deployment(flow_id=client.create_flow(night), name="waits", entrypoint="a.py:night")
        deployment = find_deployment(api, "night/waits")
        later = client.create_flow_run_from_deployment(
            made, state=Scheduled(scheduled_time=datetime.now(UTC) + timedelta(hours=8))
        )
        with pytest.raises(RunRequestError, match=r"no run goes on$"):
            _active_run(api, deployment)
        for state in (Suspended(), Scheduled(), AwaitingRetry(scheduled_time=datetime.now(UTC) + timedelta(hours=1))):
            run = client.create_flow_run_from_deployment(made)
            client.set_flow_run_state(run.id, state, force=True)
            assert _active_run(api, deployment)["id"] == str(run.id)
            cancel(api, str(run.id))
            assert client.read_flow_run(run.id).state_name == "Cancelled"
        with pytest.raises(RunRequestError, match="its last one ended as Cancelled"):
            _active_run(api, deployment)
        assert client.read_flow_run(later.id).state_name == "Scheduled"


def test_a_run_that_somebody_has_removed_ends_the_watch_with_its_id(api: ServerApi) -> None:
    with pytest.raises(ServerError, match=r"000000000000 is not there any more"):
        Following(api, "00000000-0000-0000-0000-000000000000", None, is_night=False, show=print, tell=print).wait()


def test_a_silent_server_is_borne_for_a_while(api: ServerApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(run_id: str) -> dict[str, Any]:
        raise UnreachableError("the server does not answer")

    told: list[str] = []
    monkeypatch.setattr(following, "OUTAGE_S", 0.5)
    monkeypatch.setattr(following, "POLL_S", 0.1)
    monkeypatch.setattr(api, "flow_run", silent)
    with pytest.raises(ServerError, match="does not answer; the run goes on by itself"):
        Following(api, "any", None, is_night=False, show=print, tell=told.append).wait()
    assert told == ["the server does not answer; the run does not depend on it"]


def test_an_unknown_deployment_is_refused_with_the_nearest_or_with_both_of_a_dataset(api: ServerApi) -> None:
    with get_client(sync_client=True) as client:
        flow_id = client.create_flow(night)
        client.create_deployment(flow_id=flow_id, name="a-dataset", entrypoint="flows/nightly.py:nightly")
    with pytest.raises(SubmissionError, match=r"did you mean night/a-dataset\?"):
        find_deployment(api, "night/a-datset")
    with pytest.raises(SubmissionError, match=r"did you mean night/a-dataset\?"):
        find_deployment(api, "a-dataset")
    assert find_deployment(api, "night/a-dataset").is_night


def log(client: SyncPrefectClient, run_id: Any, *messages: str) -> None:
    """Write lines into the log of a run, as its own logger does."""
    for message in messages:
        time.sleep(0.002)  # their order is that of their times
        moment = datetime.now(UTC)
        line = LogCreate(name="prefect.flow_runs", level=20, message=message, timestamp=moment, flow_run_id=run_id)
        client.request("POST", "/logs/", json=[line.model_dump(mode="json")])
