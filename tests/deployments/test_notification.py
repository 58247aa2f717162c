"""People are told how nights went: the automations of a real server send to an address that listens on the loopback."""

import json
import queue
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State, StateType
from prefect.events.worker import EventsWorker
from prefect.states import Completed, Late, Pending, Running

from flows.deployment.notification import AUTOMATIONS, ensure_notifications
from flows.night.events import NightEvent, tell
from kdgat.base import UserError

pytestmark = pytest.mark.prefect

TIMEOUT_S = 120.0
FAILURE = "training: normal-large-seed0: out of memory; the model in service stays"


class Receiver:
    """An http address, and what comes in there."""

    def __init__(self) -> None:
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        messages = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                messages.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def text(self) -> str:
        return str(self.messages.get(timeout=TIMEOUT_S)["text"])


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def client(prefect_server: object) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client
        ensure_notifications(client, "")


def night(what: str) -> None:
    """Let a night end in some way."""

    @flow(name="nightly")
    def nightly(config: dict[str, Any]) -> None:
        if what == "failed":
            raise ValueError(FAILURE)
        tell(NightEvent(what), "my_cars", f"{what}: train_1__a.csv is no Parquet")

    nightly(config={"data": {"dataset": "my_cars"}}, return_state=True)
    EventsWorker.drain_all(timeout=30.0)


def test_a_night_that_failed_refused_files_or_promoted_a_model_is_told_with_the_reason(
    client: SyncPrefectClient, receiver: Receiver
) -> None:
    address = f"http://127.0.0.1:{receiver.port}/hooks/secret"
    ensure_notifications(client, address)
    for what, words in (
        ("failed", ("night of my_cars failed", FAILURE)),
        (NightEvent.REFUSED, ("night of my_cars refused files", "train_1__a.csv is no Parquet")),
        (NightEvent.STANDSTILL, ("nights of my_cars promote nothing", "kdgat.night.standstill: train_1")),
        (NightEvent.PROMOTED, ("night of my_cars put a new model into service", "kdgat.night.promoted: train_1")),
    ):
        night(what)
        text = receiver.text()
        assert all(word in text for word in words), text
    shown = client.read_block_document_by_name("kdgat-nights", "custom-webhook", include_secrets=False)
    assert "hooks/secret" not in shown.model_dump_json()

    # What a person has paused in the UI stays paused by the next `make deploy`.
    (failed,) = client.read_automations_by_name("tell that a night failed")
    client.pause_automation(failed.id)
    ensure_notifications(client, address)
    assert not client.read_automations_by_name("tell that a night failed")[0].enabled
    for value in ("off", "off"):
        ensure_notifications(client, value)
        assert not any(client.read_automations_by_name(name) for name in AUTOMATIONS)


class DeployedNight:
    """A deployment of the flow `nightly`, of which one run may go on."""

    def __init__(self, client: SyncPrefectClient) -> None:
        @flow(name="nightly")
        def nightly(config: dict[str, Any]) -> None:
            pass

        self.client = client
        content = {
            "flow_id": str(client.create_flow(nightly)),
            "name": "my-cars",
            "parameters": {"config": {"data": {"dataset": "my_cars"}}},
            "concurrency_limit": 1,
            "concurrency_options": {"collision_strategy": "CANCEL_NEW"},
        }
        self.id = UUID(client.request("POST", "/deployments/", json=content).json()["id"])

    def run(self) -> UUID:
        return self.client.create_flow_run_from_deployment(self.id).id

    def set(self, run: UUID, *states: State[Any]) -> None:
        for state in states:
            self.client.set_flow_run_state(run, state)


def test_a_night_that_finds_its_dataset_taken_is_told_and_so_is_that_none_completes(
    client: SyncPrefectClient, receiver: Receiver
) -> None:
    ensure_notifications(client, f"http://127.0.0.1:{receiver.port}/", patience=timedelta(seconds=12))
    deployed = DeployedNight(client)
    first, second = deployed.run(), deployed.run()
    deployed.set(first, Pending(), Running())
    deployed.set(second, Pending())
    assert client.read_flow_run(second).state_type == StateType.CANCELLED
    text = receiver.text()
    assert "night of my_cars was cancelled" in text
    assert "concurrency limit" in text
    text = receiver.text()
    assert "no night of my_cars completes" in text
    assert "`make deployed` says whether the worker runs" in text
    # One that completes is good news for as long as the next one may take, and then none.
    deployed.set(first, Completed())
    assert "no night of my_cars completes" in receiver.text()


def test_a_night_that_starts_late_because_no_worker_runs_counts_as_one_that_did_not_complete(
    client: SyncPrefectClient, receiver: Receiver
) -> None:
    ensure_notifications(client, f"http://127.0.0.1:{receiver.port}/", patience=timedelta(seconds=12))
    deployed = DeployedNight(client)
    deployed.set(deployed.run(), Late())  # as the server says of one that nobody takes
    assert "no night of my_cars completes" in receiver.text()


def test_an_address_of_apprise_works_too(client: SyncPrefectClient, receiver: Receiver) -> None:
    ensure_notifications(client, f"json://127.0.0.1:{receiver.port}/")
    night("failed")
    message = receiver.messages.get(timeout=TIMEOUT_S)
    assert message["title"] == "night of my_cars failed"
    assert FAILURE in message["message"]


def test_an_address_that_nobody_knows_is_refused_without_showing_it(client: SyncPrefectClient) -> None:
    for address, words in (
        ("carrier-pigeon://token-123", "carrier-pigeon://...: nobody knows how to send there"),
        ("slack-webhook/none", "no such block"),
        ("ops@example.org/token-123", "neither an address"),
    ):
        with pytest.raises(UserError, match=words) as refused:
            ensure_notifications(client, address)
        assert "token-123" not in str(refused.value)
    assert not any(client.read_automations_by_name(name) for name in AUTOMATIONS)
