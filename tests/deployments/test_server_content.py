"""What `make deploy` does to what a server holds, with a real server: schedules of people, runs that go on."""

import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Completed, Running

from flows.deployment import server_content
from flows.deployment.installation import POOL, PREFECT_FILE
from flows.deployment.overdue import read_nights
from flows.deployment.server_content import apply_prefect_file, crash_lost_runs, ensure_pool, keeping_schedules
from flows.deployment.service import processes_with
from flows.lost_runs import LOST
from kdgat.base import UserError
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

NIGHT = {"schedule": {"cron": "0 2 * * *", "timezone": "UTC"}, "slug": "night"}
BY_HAND = {"schedule": {"interval": 3600.0}, "parameters": {"preset": "quick"}, "active": True}


@flow
def anything(preset: str = "full") -> None:
    """Do nothing."""


@pytest.fixture(scope="module")
def client(prefect_server: object) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        ensure_pool(client)
        yield client


class Deployed:
    """A deployment with a night, and the commands that change its schedules."""

    def __init__(self, client: SyncPrefectClient, note_path: Path) -> None:
        self.client, self.note_path, self.name = client, note_path, note_path.parent.name
        self.id: UUID | None = None

    def redeploy(self, awake: bool = True) -> None:
        """Do what `make deploy` does, with the request that `prefect deploy` sends."""
        with keeping_schedules(self.client, self.note_path):
            flow_id = self.client.create_flow(anything)
            schedules = [{**NIGHT, "active": awake}]
            if self.id is None:
                content = {"flow_id": str(flow_id), "name": self.name, "work_pool_name": POOL, "schedules": schedules}
                self.id = UUID(self.client.request("POST", "/deployments/", json=content).json()["id"])
            else:
                self.ask("PATCH", "", {"schedules": schedules})

    def ask(self, method: Literal["POST", "PATCH"], path: str, content: Any) -> Any:
        answer = self.client.request(
            method,
            "/deployments/{id}" + path,  # type: ignore[arg-type]
            path_params={"id": self.id},
            json=content,
        )
        return answer.json() if answer.content else None

    def set_night(self, awake: bool) -> None:
        """Click the switch in the UI."""
        (night,) = [schedule for schedule in self.schedules() if schedule["slug"] == "night"]
        self.ask("PATCH", f"/schedules/{night['id']}", {"active": awake})

    def schedules(self) -> list[dict[str, Any]]:
        assert self.id is not None
        found = self.client.read_deployment(self.id).schedules
        return sorted((schedule.model_dump(mode="json") for schedule in found), key=lambda row: str(row["slug"]))

    def is_awake(self) -> bool:
        return next(bool(row["active"]) for row in self.schedules() if row["slug"] == "night")


@pytest.fixture
def deployed(client: SyncPrefectClient, tmp_path: Path) -> Deployed:
    return Deployed(client, tmp_path / "schedules.json")


def test_a_night_that_somebody_has_paused_stays_paused_however_often_it_is_deployed(deployed: Deployed) -> None:
    deployed.redeploy()
    assert deployed.is_awake()
    deployed.set_night(False)
    for _ in range(2):
        deployed.redeploy()
        assert not deployed.is_awake()
    deployed.set_night(True)
    deployed.redeploy()
    assert deployed.is_awake()


def test_a_night_that_had_no_data_wakes_when_they_are_there_and_one_that_somebody_woke_stays(
    deployed: Deployed,
) -> None:
    deployed.redeploy(awake=False)
    deployed.redeploy(awake=True)
    assert deployed.is_awake()
    deployed.redeploy(awake=False)
    assert not deployed.is_awake()
    deployed.set_night(True)
    deployed.redeploy(awake=False)
    assert deployed.is_awake()


@pytest.mark.parametrize("slug", [None, "lunch"])
def test_a_schedule_that_somebody_has_added_survives(deployed: Deployed, slug: str | None) -> None:
    deployed.redeploy()
    deployed.ask("POST", "/schedules", [{**BY_HAND, "slug": slug}])
    for _ in range(2):
        deployed.redeploy()
        (other,) = [row for row in deployed.schedules() if row["slug"] != "night"]
        assert (other["schedule"]["interval"], other["parameters"], other["slug"]) == (
            3600.0,
            {"preset": "quick"},
            slug,
        )
        assert len(deployed.schedules()) == 2


def test_a_deploy_that_fails_half_way_keeps_them_too(deployed: Deployed) -> None:
    deployed.redeploy()
    deployed.ask("POST", "/schedules", [BY_HAND])
    deployed.set_night(False)

    def fail() -> None:
        with keeping_schedules(deployed.client, deployed.note_path):
            deployed.ask("PATCH", "", {"schedules": [{**NIGHT, "active": True}]})
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail()
    assert not deployed.is_awake()
    assert len(deployed.schedules()) == 2


def test_what_nights_ought_to_come_is_noted_with_the_time_they_may_take(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    @flow(name="nightly")
    def nightly() -> None:
        pass

    def deploy(name: str, *crons: str, active: bool = True, **parameters: str) -> None:
        rows = [{"schedule": {"cron": cron, "timezone": "Europe/Vienna"}, "active": active} for cron in crons]
        content = {"name": name, "work_pool_name": POOL, "schedules": rows, "parameters": parameters}
        client.request("POST", "/deployments/", json={"flow_id": str(client.create_flow(nightly)), **content})

    deploy("daily", "0 2 * * *", out="/nights/daily")
    deploy("weekdays", "0 2 * * 1-5", out="/nights/weekdays")
    deploy("asleep", "0 2 * * *", active=False, out="/nights/asleep")
    deploy("by-hand", out="/nights/by-hand")
    longest = server_content.note_nights(client, tmp_path)
    nights = read_nights(tmp_path)
    assert set(nights) == {"nightly/daily", "nightly/weekdays"}
    assert 48 * 3600 <= nights["nightly/daily"]["patience_s"] <= 49 * 3600  # one of them may have 25 hours
    assert longest == timedelta(seconds=nights["nightly/weekdays"]["patience_s"])
    assert timedelta(days=4) <= longest <= timedelta(days=4, hours=1)
    server_content.note_nights(client, tmp_path)
    assert read_nights(tmp_path) == nights  # since when they ought to come stays


def test_deployments_that_take_too_long_are_given_up_with_all_that_was_started_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    made = "| Deployment 'can/one' successfully created with id '7'. |"
    child = [sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path)]
    for path, text in {
        PREFECT_FILE: "",
        # Found first by PYTHONPATH.
        Path("prefect", "__init__.py"): "",
        Path("prefect", "__main__.py"): f"import subprocess; print({made!r}, flush=True); subprocess.run({child})",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(server_content, "DEPLOY_TIMEOUT_S", 3.0)
    with pytest.raises(UserError, match=r"prefect .*deploy .* did not end within 3 s.*deploy\.log.*\n.*can/one.*$"):
        apply_prefect_file(tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)}, tmp_path / "deploy.log", told.append)
    assert told == ["  can/one"]
    wait_until(lambda: not processes_with({}, str(tmp_path)), "the end of its child")


def running(client: SyncPrefectClient, deployed: Deployed) -> FlowRun:
    assert deployed.id is not None
    run = client.create_flow_run_from_deployment(deployed.id)
    client.set_flow_run_state(run.id, Running(), force=True)
    return run


def test_a_run_is_crashed_if_its_process_is_gone_and_not_if_it_began_or_ended_meanwhile(
    client: SyncPrefectClient, deployed: Deployed
) -> None:
    deployed.redeploy()
    lost, ends, goes_on = (running(client, deployed) for _ in range(3))
    alive = {ends.id, goes_on.id}
    begins: list[FlowRun] = []

    def scan() -> set[UUID]:
        """Look at the processes, between which the world goes on."""
        found = set(alive)
        if not begins:
            begins.append(running(client, deployed))
            alive.add(begins[0].id)
            alive.remove(ends.id)
            client.set_flow_run_state(ends.id, Completed(), force=True)
        return found

    assert crash_lost_runs(client, scan, [StateType.RUNNING]) == [lost.name]
    state = client.read_flow_run(lost.id).state
    assert state is not None
    assert state.name == LOST
    assert client.read_flow_run(ends.id).state_type == StateType.COMPLETED
    for run in (goes_on, begins[0]):
        assert client.read_flow_run(run.id).state_type == StateType.RUNNING
        client.set_flow_run_state(run.id, Completed(), force=True)


def test_a_run_that_begins_and_ends_while_the_processes_are_looked_at_keeps_its_end(
    client: SyncPrefectClient, deployed: Deployed
) -> None:
    deployed.redeploy()
    short = running(client, deployed)
    scans: list[int] = []

    def scan() -> set[UUID]:
        scans.append(1)
        if len(scans) == 2:
            client.set_flow_run_state(short.id, Completed(), force=True)
        return set()

    assert crash_lost_runs(client, scan, [StateType.RUNNING]) == []
    assert client.read_flow_run(short.id).state_type == StateType.COMPLETED
