"""A real installation, from `make deploy` to `make undeploy`, with what people and nights do in between."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.deployment.__main__ import EXIT_NOT_RUNNING
from flows.deployment.overdue import NOTE, read_nights
from flows.deployment.server_content import NO_DATA
from flows.deployment.service import Service
from kdgat.base import write_json_atomically
from kdgat.can.evaluation.results import Results
from kdgat.cluster import AttemptLedger
from kdgat.registry import Registry
from kdgat.run import OutputDirectory, StageState
from tests.deployments.installed import ROOT, Installed, free_port
from tests.support.small_runs import ENDLESS, ONE_NETWORK, UNTRAINED
from tests.support.waiting import wait_until

pytestmark = pytest.mark.prefect

SILENCE_S = 40.0  # instead of three heartbeats of 30 s
GOING_ON = "going on from checkpoint-"  # in a stage's log


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    found = Installed(tmp_path_factory.mktemp("installed"))
    try:
        answer = found.command("up")
        assert answer.returncode == 0, answer.stdout + answer.stderr
        yield found
    finally:
        found.command("down")
        assert found.processes() == {}


def test_it_is_up_with_all_deployments_and_doing_it_again_changes_nothing(installed: Installed) -> None:
    before = [Service(installed.here.home, name).process() for name in ("server", "worker")]
    assert all(before)
    service = Service(installed.here.home, "server")
    write_json_atomically(service.note_path, {key: value for key, value in service.note().items() if key != "host"})
    again = installed.command("up")
    assert again.returncode == 0, again.stderr
    assert service.note()["host"] == socket.gethostname()  # which an earlier version did not note
    assert [Service(installed.here.home, name).process() for name in ("server", "worker")] == before
    assert f"set -a; . {installed.here.path}; set +a" in again.stdout
    listed = installed.command("status")
    assert listed.returncode == 0, listed.stdout
    for name in ("can/synthetic", "nightly/synthetic", "evaluate-can/recordings", "0 2 * * *"):
        assert name in listed.stdout
    (without_data,) = [line for line in listed.stdout.splitlines() if "without data: " in line]
    assert "hcrl-sa" in without_data
    assert "(can and nightly)" in without_data
    assert "synthetic" not in without_data
    rows = installed.api("POST", "/deployments/filter", {})
    assert {row["name"] for row in rows for schedule in row["schedules"] if schedule["active"]} == {"synthetic"}
    marked = {row["name"]: NO_DATA in row["tags"] for row in rows}
    assert (marked["hcrl-sa"], marked["synthetic"], marked["recordings"]) == (True, False, False)
    limits = installed.api("POST", "/v2/concurrency_limits/filter", {})
    assert {limit["name"]: limit["limit"] for limit in limits}["dataset synthetic"] == 1

    # Nights ought to come: nobody need be told yet, and somebody has to be once two days have gone by without one.
    home = installed.here.home
    assert set(read_nights(home)) == {"nightly/synthetic"}
    assert (installed.command("check").returncode, installed.command("check").stdout) == (0, "")
    night = read_nights(home)["nightly/synthetic"]
    write_json_atomically(home / NOTE, {"nightly/synthetic": {**night, "since": night["since"] - 60 * 3600}})
    overdue = installed.command("check")
    assert overdue.returncode == EXIT_NOT_RUNNING
    assert overdue.stdout.startswith("nightly/synthetic: no night has completed for 2 d 12 h")
    write_json_atomically(home / NOTE, {"nightly/synthetic": night})


def test_who_does_not_know_the_string_is_refused_and_no_log_or_command_shows_it(installed: Installed) -> None:
    here, secret = installed.here, installed.here.auth_string.partition(":")[2]
    for auth in (None, ("kdgat", "guessed")):
        with httpx.Client(trust_env=False, auth=auth) as client:
            assert client.post(f"{here.url}/flow_runs/filter", json={}).status_code == httpx.codes.UNAUTHORIZED
    page = {"Origin": "http://elsewhere.example", "Access-Control-Request-Method": "POST"}
    with httpx.Client(trust_env=False) as client:
        asked = client.options(f"{here.url}/flow_runs/filter", headers=page)
    assert "access-control-allow-origin" not in asked.headers
    again = installed.command("up")
    texts = [path.read_text(errors="replace") for path in here.home.glob("*.[jl]*")]
    assert len(texts) > 3
    assert not any(secret in text for text in (*texts, *installed.processes().values(), again.stdout, again.stderr))
    # What it says to show the string does so.
    (line,) = [line for line in again.stdout.splitlines() if "asks for a string" in line]
    shown = subprocess.run(line.partition(": ")[2], shell=True, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == here.auth_string


def test_a_good_run_ends_with_0_and_leaves_results_and_is_evaluated_again(installed: Installed) -> None:
    done = installed.watched_run("can/synthetic", overrides=ONE_NETWORK)
    assert done.returncode == 0, done.stdout + done.stderr + installed.log()
    out = installed.here.outputs / "can" / "synthetic"
    assert "Finished in state Completed(" in done.stdout
    assert " found; F1 0." in done.stdout  # its scores
    assert (out / "report.html").is_file()
    results = Results.read(out / "results.json")
    assert results.preset == "quick"
    assert results.f1

    done = installed.watched_run("evaluate-can/recordings", run=str(out))
    assert done.returncode == 0, done.stdout + done.stderr + installed.log()
    (path,) = (installed.here.outputs / "evaluations").glob("*.json")
    assert str(path) in done.stdout
    assert Results.read(path).f1 == results.f1
    tables = [row for row in installed.api("POST", "/artifacts/filter", {}) if row["type"] == "table"]
    assert any(str(path) in (row["description"] or "") for row in tables)


def test_a_wrong_parameter_is_refused_with_its_name_before_there_is_a_run(installed: Installed) -> None:
    """Which ones are, test_refusals.py says."""
    before = installed.api("POST", "/flow_runs/count", {})
    for parameters, words in (
        ({"site": {"name": "a", "scheduler": "pbs"}}, ("site.scheduler", "pbs", "slurm")),
        ({"presett": "full"}, ("'presett'", "not found", "'preset'")),
        ({"out": "runs/a"}, ("'out'", "'runs/a' does not match '^/'")),
    ):
        answer = installed.watched_run("can/synthetic", **parameters)
        assert answer.returncode == 1
        for word in words:
            assert word in answer.stdout + answer.stderr
    assert installed.api("POST", "/flow_runs/count", {}) == before


def test_what_only_the_flow_can_know_fails_at_once_with_the_name(installed: Installed) -> None:
    failed = installed.run_that_is_refused()
    assert failed["state"]["message"] == (
        "override training.max_epoch=5: unknown key 'max_epoch': did you mean 'max_epochs'?"
    )
    assert failed["total_run_time"] < 60


def test_a_second_run_on_a_dataset_is_cancelled_and_one_that_is_cancelled_saves_and_ends_its_stages(
    installed: Installed, tmp_path: Path
) -> None:
    out = tmp_path / "endless"
    first = installed.start_run("can/synthetic", overrides=ENDLESS, out=str(out))
    wait_until(lambda: list(out.glob("stages/normal-*/checkpoints/*.pt")), "a checkpoint", log=installed.log)
    second = installed.watched_run("nightly/synthetic")
    assert second.returncode == 1
    assert "finished in state 'Cancelled'" in second.stdout + second.stderr
    cancelled = installed.prefect("flow-run", "cancel", first)
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert installed.wait_for_state(first, "Cancelled")["message"]
    wait_until(lambda: not any("kdgat.stage" in c for c in installed.processes().values()), "the end of its stages")
    record = OutputDirectory(out).read_index().record("normal-large-seed0")
    assert record.state == StageState.PAUSED
    assert OutputDirectory(out).stage_directory(record).newest_checkpoint()


@pytest.mark.nightly
def test_a_night_comes_by_itself_and_puts_a_model_into_service(installed: Installed) -> None:
    """What nights decide, tests/flows/test_nightly.py says."""
    deployment = installed.api("GET", "/deployments/name/nightly/synthetic")
    path = f"/deployments/{deployment['id']}/schedules"
    for schedule in deployment["schedules"]:
        installed.api("DELETE", f"{path}/{schedule['id']}")

    def nights(*states: str) -> list[dict[str, Any]]:
        wanted = {"id": {"any_": [deployment["id"]]}}
        of_state = {"state": {"type": {"any_": states}}}
        found: list[dict[str, Any]] = installed.api(
            "POST", "/flow_runs/filter", {"deployments": wanted, "flow_runs": of_state, "sort": "START_TIME_ASC"}
        )
        return found

    promotion = {"minimum": 0.0, "most_false_alarms": 1.0}
    overrides = [*ONE_NETWORK, *UNTRAINED]
    parameters = {"settle_s": 0.0, "start_from": "scratch", "promotion": promotion, "overrides": overrides}
    # Soon, and then with time for a night to end: each one that finds the dataset taken is a process, too.
    soon = (datetime.now(UTC) + timedelta(seconds=20)).isoformat()
    schedule = {"schedule": {"interval": 120, "anchor_date": soon}, "active": True, "parameters": parameters}
    (made,) = installed.api("POST", path, [schedule])
    wait_until(lambda: nights("COMPLETED", "FAILED", "CRASHED"), "a night", log=installed.log)
    installed.api("DELETE", f"{path}/{made['id']}")
    wait_until(lambda: not nights("SCHEDULED", "PENDING", "RUNNING"), "the end of the night after", log=installed.log)
    first = nights("COMPLETED", "FAILED", "CRASHED")[0]
    assert first["state"]["name"] == "Completed", first["state"]["message"]
    assert first["auto_scheduled"]
    assert "no model was in service before" in first["state"]["message"]
    assert Registry(installed.here.registry).in_service("can", "synthetic") is not None
    artifacts = installed.api("POST", "/artifacts/filter", {})
    assert any((row["key"] or "").startswith("night") for row in artifacts)


def suspend_and_resume(installed: Installed, run_id: str, out: Path) -> None:
    """Press the two buttons beside each other, as the page does, and look at what a run is in between."""
    details = {"pause_timeout": (datetime.now(UTC) + timedelta(hours=1)).isoformat(), "pause_reschedule": True}
    suspended = {"type": "PAUSED", "name": "Suspended", "state_details": details}
    installed.api("POST", f"/flow_runs/{run_id}/set_state", {"state": suspended, "force": True})
    wait_until(lambda: not any(run_id in one for one in installed.environments()), "its end", log=installed.log)
    state = installed.run_state(run_id)
    assert (state["type"], state["name"]) == ("PAUSED", "Suspended")
    assert "Resume goes on from there" in state["message"]
    assert state["state_details"]["pause_timeout"] is not None  # of the person's choice
    output = OutputDirectory(out)
    record = output.read_index().record("normal-large-seed0")
    assert record.state == StageState.PAUSED
    directory = output.stage_directory(record)
    assert [attempt.end for attempt in AttemptLedger(directory).records] == ["Paused"]
    ends = {"COMPLETED", "CANCELLED"}  # a moment after the events that say so
    wait_until(lambda: installed.task_states(run_id) == ends, "the ends of its tasks", log=installed.log)
    (automation,) = installed.api("POST", "/automations/filter", {})  # it waits for no word of this run any more
    assert "prefect.flow-run.Suspended" in automation["trigger"]["expect"]

    assert installed.api("POST", f"/flow_runs/{run_id}/resume", {})["status"] == "ACCEPT"
    wait_until(lambda: GOING_ON in directory.log_path.read_text(), "going on", log=installed.log)
    assert installed.run_state(run_id)["name"] == "Running"


def test_a_suspended_run_is_resumed_and_one_that_died_with_its_worker_is_crashed_and_the_next_one_goes_on(
    installed: Installed, tmp_path: Path
) -> None:
    (automation,) = installed.api("POST", "/automations/filter", {})
    shorter = {key: automation[key] for key in ("name", "description", "enabled", "trigger", "actions")}
    shorter["trigger"]["within"] = SILENCE_S
    installed.api("PUT", f"/automations/{automation['id']}", shorter)

    out = tmp_path / "dies"
    first = installed.start_run("can/synthetic", overrides=ENDLESS, out=str(out))
    wait_until(lambda: list(out.glob("stages/normal-*/checkpoints/*.pt")), "a checkpoint", log=installed.log)
    suspend_and_resume(installed, first, out)
    heartbeat = {"filter": {"event": {"name": ["prefect.flow-run.heartbeat"]}}}
    wait_until(
        lambda: any(
            first in event["resource"]["prefect.resource.id"]
            for event in installed.api("POST", "/events/filter", heartbeat)["events"]
        ),
        "a heartbeat",
        log=installed.log,
    )
    worker = Service(installed.here.home, "worker").process()
    assert worker is not None
    worker.kill()
    for process in [pid for pid, command in installed.processes().items() if "prefect.engine" in command]:
        subprocess.run(["kill", "-KILL", str(process)], check=True)
    assert installed.command("status").returncode == 3

    state = installed.wait_for_state(first, "FlowProcessLost", "Crashed")
    assert state["type"] == "CRASHED"
    assert "checkpoint" in state["message"]

    assert installed.command("up").returncode == 0
    output = OutputDirectory(out)
    directory = output.stage_directory(output.read_index().record("normal-large-seed0"))
    before = len(AttemptLedger(directory).records)
    second = installed.start_run("can/synthetic", overrides=ENDLESS, out=str(out))
    wait_until(lambda: len(AttemptLedger(directory).records) > before, "another attempt", log=installed.log)
    wait_until(lambda: directory.log_path.read_text().count(GOING_ON) == 2, "going on", log=installed.log)
    assert installed.run_state(second)["type"] == "RUNNING"
    assert installed.task_states(first) <= {"COMPLETED", "CANCELLED", "CRASHED"}


def test_who_has_lost_sight_of_an_installation_is_told_its_home_and_nothing_is_ended(
    installed: Installed, tmp_path: Path
) -> None:
    lost = Installed(tmp_path)
    lost.environment |= {"HOME": str(tmp_path), "PREFECT_API_URL": installed.here.url}
    del lost.environment["KDGAT_HOME"]
    home = installed.here.home
    down, status = lost.command("down"), lost.command("status")
    assert down.returncode == 1
    assert f"`KDGAT_HOME={home} make undeploy`" in down.stderr
    assert status.returncode == 3
    assert f"`KDGAT_HOME={home} make deployed`" in status.stdout
    assert "can/" not in status.stdout
    assert Service(home, "server").process() is not None


def test_undeploy_lets_a_run_save_ends_every_process_and_keeps_what_was_made(installed: Installed) -> None:
    here = installed.here
    assert any("prefect.engine" in command for command in installed.processes().values())  # of the test before
    kept = [path for folder in (here.outputs, here.registry) for path in folder.rglob("*.json")]
    # Somebody who has read installation.env and trains by hand.
    by_hand = [sys.executable, "-c", "import time; time.sleep(600)", "kdgat.stage"]
    stranger = subprocess.Popen(by_hand, env={**installed.environment, **here.environment()})
    try:
        down = installed.command("down")
        assert down.returncode == 0, down.stderr
        assert "by force" not in down.stdout
        assert set(installed.processes()) == {stranger.pid}
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert (here.home / "prefect" / "prefect.db").is_file()
    assert all(path.is_file() for path in kept)
    assert installed.command("status").returncode == 3
    again = installed.command("down")
    assert again.returncode == 0
    assert "does not run" in again.stdout


def test_a_taken_port_is_said_with_a_free_one(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        other = Installed(tmp_path, KDGAT_PORT=str(port))
        answer = other.command("up")
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: KDGAT_PORT={port} is taken")
    assert "Traceback" not in answer.stderr
    assert other.processes() == {}


def test_a_server_that_dies_at_its_start_is_said_with_its_last_words_and_nothing_is_left(tmp_path: Path) -> None:
    database = "sqlite+aiosqlite:////proc/no-such-folder/prefect.db"
    other = Installed(tmp_path, PREFECT_SERVER_DATABASE_CONNECTION_URL=database)
    answer = other.command("up")
    assert answer.returncode == 1
    assert "the server ended at its start" in answer.stderr
    assert "unable to open database file" in answer.stderr
    assert "Traceback" not in answer.stderr.partition("ends with:")[0]
    assert other.processes() == {}


def test_ctrl_c_while_it_deploys_leaves_nothing(tmp_path: Path) -> None:
    other = Installed(tmp_path, KDGAT_PORT=str(free_port()))
    # Whoever starts tests in the background lets them ignore Ctrl-C.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "flows.deployment", "up"]
    with subprocess.Popen(command, cwd=ROOT, env=other.environment, stdout=subprocess.DEVNULL) as process:
        wait_until((Path(other.environment["KDGAT_HOME"]) / "server.json").is_file, "a server", log=other.log)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert other.processes() == {}
