"""What a Prefect server has to hold: the work pool, the deployments, a limit per dataset, what notices dead runs."""

import asyncio
import contextlib
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import httpx
import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate, GlobalConcurrencyLimitUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import DeploymentSchedule, FlowRun, StateType, WorkerStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import SCHEDULE_TYPES, CronSchedule, NoSchedule
from prefect.client.schemas.sorting import DeploymentSort
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound
from prefect.server.schemas import schedules
from prefect.workers.process import ProcessWorker

from flows.deployment.installation import HEARTBEAT_S, POOL, PREFECT, SYNTHETIC, find_prefect_file
from flows.deployment.overdue import NOTE, read_nights
from flows.deployment.service import have_ended, kill, read_note
from flows.log_tail import LogTail, last_lines
from flows.lost_runs import LOST, crash
from flows.suspension import NAME as SUSPENDED
from kdgat.base import UserError, wait_until, write_json_atomically
from kdgat.can.nightly.new_recordings import holds_files
from kdgat.canbus.catalog import load_catalog
from kdgat.family.night import FLOW_NAME

AUTOMATION: Final = "crash runs whose process died"
SILENCE_S: Final = 3 * HEARTBEAT_S  # one heartbeat may be lost or late
OWN_POOL: Final = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
# What a run's last event may be named after: Prefect's own names, and what `mark_lost_runs` calls a run that is gone.
ENDS: Final = ("Completed", "Failed", "Crashed", "Cancelled", SUSPENDED, LOST)
DEPLOY_TIMEOUT_S: Final = 600.0
LOG_TAIL_LINES: Final = 15
DEPLOYED: Final = re.compile(r"Deployment '(.+)' successfully")  # as `prefect deploy` prints it
PAUSED: Final = "schedule paused"
NAME_WIDTH: Final = 24
NO_DATA: Final = "no data"  # tag
_NO_DATA_NOTE: Final = "**No data yet.** "
_NOTE_END: Final = "\n\n"
SLUG: Final = "night"  # of the schedules that the file names
KEPT_OF_SCHEDULES: Final = {"schedule", "active", "max_scheduled_runs", "parameters", "slug"}


def check_schedule(cron: str, timezone: str) -> None:
    """Refuse a schedule that Prefect cannot read.

    Raises:
        UserError: naming the variable and the fix.
    """
    try:
        CronSchedule(cron=cron, timezone=timezone)
    except ValueError as error:
        raise UserError(
            f"KDGAT_NIGHTLY_CRON={cron!r} is no schedule: write minute, hour, day, month and weekday, as '0 2 * * *'"
        ) from error


def ensure_pool(client: SyncPrefectClient) -> None:
    """Make the work pool, unless it is there."""
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(
                name=POOL,
                type=ProcessWorker.type,
                description="Runs are processes of the machine that `make deploy` set up; their stages too, or jobs.",
                base_job_template=ProcessWorker.get_default_base_job_template(),
            )
        )


def apply_prefect_file(
    checkout: Path, environment: Mapping[str, str], log_path: Path, tell: Callable[[str], None]
) -> None:
    """Create or update all deployments of `deployments/prefect.yaml`, as `prefect deploy --all` does, and tell of each.

    Raises:
        UserError: with the last lines of what it printed.
    """
    command = [*PREFECT, "deploy", "--prefect-file", str(find_prefect_file(checkout)), "--all"]
    with (
        log_path.open("wb") as log,
        psutil.Popen(
            command,
            cwd=checkout,
            env={**environment, "NO_COLOR": "1", "COLUMNS": "160"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # it ends as a whole, with the steps that it has started
        ) as deploying,
    ):
        output = LogTail(log_path)

        def is_over() -> bool:
            has_ended = have_ended([deploying], 0.0)
            for line in output.new_lines():
                if made := DEPLOYED.search(line):
                    tell(f"  {made[1]}")
            return has_ended

        try:
            has_ended = wait_until(is_over, DEPLOY_TIMEOUT_S)
        finally:
            kill(deploying)
    if not has_ended or deploying.returncode != 0:
        problem = "failed" if has_ended else f"did not end within {DEPLOY_TIMEOUT_S:g} s"
        tail = last_lines(log_path, LOG_TAIL_LINES)
        raise UserError(f"{' '.join(command[2:])} {problem}. Its output {log_path} ends with:\n{tail}")


def limit_datasets(client: SyncPrefectClient) -> None:
    """Let all deployments of one dataset that have a limit share one, whatever their flow."""
    for deployment in read_deployments(client):
        dataset = _data_of(deployment.parameters).get("dataset")
        if dataset is None or deployment.concurrency_options is None:
            continue
        name = f"dataset {dataset}"
        try:
            limit_id = client.read_global_concurrency_limit_by_name(name).id
        except ObjectNotFound:
            limit_id = client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        if deployment.global_concurrency_limit is None or deployment.global_concurrency_limit.id != limit_id:
            # The client's DeploymentUpdate does not know this key.
            content = {"global_concurrency_limit_id": str(limit_id)}
            client.request("PATCH", "/deployments/{id}", path_params={"id": deployment.id}, json=content)


def ensure_automation(client: SyncPrefectClient) -> None:
    """Make or update what crashes a run of which nothing was heard for three heartbeats."""
    automation = AutomationCore(
        name=AUTOMATION,
        description=(
            f"A run says every {HEARTBEAT_S} s that it lives. One that has said nothing for {SILENCE_S} s, "
            "and not how it ended, is marked as crashed; its next run goes on from the checkpoints."
        ),
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            for_each={"prefect.resource.id"},
            after={"prefect.flow-run.heartbeat"},
            expect={f"prefect.flow-run.{name}" for name in ("heartbeat", *ENDS)},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=SILENCE_S),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                name=LOST,
                message=f"nothing heard of its process for {SILENCE_S} s; the next run goes on from its checkpoints",
            )
        ],
    )
    found = client.read_automations_by_name(AUTOMATION)
    if found:
        client.update_automation(found[0].id, automation)
    else:
        client.create_automation(automation)


def crash_lost_runs(
    client: SyncPrefectClient, find_alive: Callable[[], Set[UUID]], states: Sequence[StateType]
) -> list[str]:
    """Mark runs of the work pool in one of these states as crashed, unless their process is alive; return their names.

    The server answers on the loopback alone, so that every process of the pool is one of this machine. While the server
    itself was down, no automation has looked: it forgets within a minute what it waited for. Runs begin and end while
    this looks: a run is lost if its process was there neither before nor after the server named it, and it has not
    ended since.
    """
    alive = find_alive()
    runs = _read_runs(client, states)
    alive = alive | find_alive()
    lost = [run for run in runs if run.id not in alive and client.read_flow_run(run.id).state_type in states]
    for run in lost:
        crash(client, run.id, "its process is gone; the next run goes on from its checkpoints")
    return [run.name for run in lost]


def free_datasets(client: SyncPrefectClient) -> None:
    """Free the limit of each dataset of which no run goes on, whatever the server believes after it was killed."""
    deployments = read_deployments(client)  # before the runs: who takes a limit after this is among them
    runs = _read_runs(client, [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    busy = {run.deployment_id for run in runs}
    limits = {deployment.id: deployment.global_concurrency_limit for deployment in deployments}
    taken = {limit.name for limit in limits.values() if limit is not None and limit.active_slots}
    for name in taken - {limit.name for owner, limit in limits.items() if limit is not None and owner in busy}:
        client.update_global_concurrency_limit(name, GlobalConcurrencyLimitUpdate(active_slots=0))


def _read_runs(client: SyncPrefectClient, states: Sequence[StateType]) -> list[FlowRun]:
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(states))))
    return client.read_flow_runs(flow_run_filter=chosen, work_pool_filter=OWN_POOL)


def read_deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """List the deployments of the work pool, in the order of their names."""
    return client.read_deployments(work_pool_filter=OWN_POOL, sort=DeploymentSort.NAME_ASC)


def note_nights(client: SyncPrefectClient, home: Path) -> timedelta:
    """Note which nights ought to come, where their reports lie, and how long after one the next may complete.

    Return the longest of these times.
    """
    noted, nights = read_nights(home), {}
    flow_ids = {flow.id for flow in client.read_flows() if flow.name == FLOW_NAME}
    for deployment in read_deployments(client):
        awake = [
            found.schedule
            for found in deployment.schedules
            if found.active and not isinstance(found.schedule, NoSchedule)
        ]
        out = deployment.parameters.get("out")
        if deployment.flow_id not in flow_ids or not awake or not out or missing_folder(deployment.parameters):
            continue
        name = f"{FLOW_NAME}/{deployment.name}"
        since = noted.get(name, {}).get("since", time.time())
        patience = min(map(_patience, awake))
        nights[name] = {"out": str(out), "since": since, "patience_s": patience.total_seconds()}
    write_json_atomically(home / NOTE, nights)
    return timedelta(seconds=max((night["patience_s"] for night in nights.values()), default=48 * 3600.0))


def _patience(schedule: SCHEDULE_TYPES) -> timedelta:
    """Return the longest time between two nights of a schedule, and a day: two days for each night."""
    of_server = getattr(schedules, type(schedule).__name__).model_validate(schedule.model_dump())
    dates = asyncio.run(of_server.get_dates(n=15))
    return max((b - a for a, b in pairwise(dates)), default=timedelta(days=1)) + timedelta(days=1)


def mark_missing_data(client: SyncPrefectClient) -> None:
    """Say at each deployment whose recordings are not there that they are missing, and how they are got."""
    for deployment in read_deployments(client):
        mark = marked(deployment.tags, deployment.description, missing_folder(deployment.parameters))
        if mark != {"tags": deployment.tags, "description": deployment.description}:
            client.request("PATCH", "/deployments/{id}", path_params={"id": deployment.id}, json=mark)


def describe_deployments(client: SyncPrefectClient) -> list[str]:
    """Write a line for each deployment: its name, and when it runs by itself; those without data in one line."""
    flows = {flow.id: flow.name for flow in client.read_flows()}
    found = read_deployments(client)
    rows = {f"{flows[one.flow_id]}/{one.name}": one.model_dump(mode="json") for one in found}
    return describe_rows(dict(sorted(rows.items())))


def describe_rows(deployments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write a line for each deployment that can run, and one for those without data.

    Args:
        deployments: by name, each as the server describes it.
    """
    missing = [name for name, row in deployments.items() if missing_folder(row["parameters"]) is not None]
    lines = [
        f"  {name:{NAME_WIDTH}} {', '.join(_times(row))}".rstrip()
        for name, row in deployments.items()
        if name not in missing
    ]
    if missing:
        lines.append(f"  without data: {_by_dataset(missing)}; `kdgat data list` says where to get them")
    return lines


def _by_dataset(names: Sequence[str]) -> str:
    """Name each dataset once, with the flows that wait for it: `hcrl-ch, set-01 (can and nightly)`."""
    flows: dict[str, list[str]] = {}
    for flow, _, dataset in (name.partition("/") for name in names):
        flows.setdefault(dataset, []).append(flow)
    datasets: dict[str, list[str]] = {}
    for dataset, waiting in flows.items():
        datasets.setdefault(" and ".join(waiting), []).append(dataset)
    return "; ".join(f"{', '.join(found)} ({waiting})" for waiting, found in datasets.items())


def _times(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{schedule['schedule']['cron']} {schedule['schedule']['timezone']}" if schedule["active"] else PAUSED
        for schedule in row["schedules"]
        if "cron" in schedule["schedule"]
    ]


def is_worker_online(client: SyncPrefectClient, name: str) -> bool:
    """Tell whether the server has heard of the worker lately."""
    path_params = {"work_pool_name": POOL}
    answer = client.request("POST", "/work_pools/{work_pool_name}/workers/filter", path_params=path_params, json={})
    return any(row["name"] == name and row["status"] == WorkerStatus.ONLINE.value for row in answer.json())


def missing_folder(parameters: Mapping[str, Any]) -> Path | None:
    """Return the folder that a deployment's recordings should be in and that is not there; None: it needs none.

    New recordings that wait in a night's inbox make its folder.
    """
    data = _data_of(parameters)
    dataset, data_root = data.get("dataset"), data.get("data_root")
    if not dataset or not data_root:
        return None
    entry = load_catalog(data.get("catalog")).get(dataset)
    folder = Path(data_root) / dataset if entry is None else entry.folder_in(data_root)
    inbox = parameters.get("inbox")
    waits = inbox is not None and holds_files(Path(inbox))
    return None if folder.is_dir() or waits else folder


def _data_of(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return which data of a catalog a deployment is for; none of an experiment, whose arguments have any names."""
    config = parameters.get("config") or {}
    return {} if "source" in config else config.get("data") or {}


def how_to_get(folder: Path) -> str:
    """Say how the recordings of a dataset come into its folder."""
    if folder.name == SYNTHETIC:
        return f"`kdgat data synth --out {folder.parent} --dataset {SYNTHETIC}` makes them"
    return "put the recordings there; `kdgat data list` says where to get them"


def marked(tags: Sequence[str], description: str | None, missing: Path | None) -> dict[str, Any]:
    """Return tags and description of a deployment with the mark that its data are missing, or without it."""
    text = description or ""
    if text.startswith(_NO_DATA_NOTE):
        text = text.partition(_NOTE_END)[2]
    kept = [tag for tag in tags if tag != NO_DATA]
    if missing is None:
        return {"tags": kept, "description": text}
    note = f"{_NO_DATA_NOTE}{missing} is not there: {how_to_get(missing)}. Then give `make deploy` again."
    return {"tags": [*kept, NO_DATA], "description": f"{note}{_NOTE_END}{text}"}


@contextlib.contextmanager
def keeping_schedules(client: SyncPrefectClient, note_path: Path) -> Iterator[None]:
    """Restore afterwards, whatever happens, which nights people have paused or woken, and schedules of their own.

    `prefect deploy` removes what `deployments/prefect.yaml` does not name, and wakes what somebody has paused.
    `note_path` says which nights the file left awake the last time: what differs from that, somebody has changed.
    """
    before = {deployment.id: deployment.schedules for deployment in read_deployments(client)}
    noted = read_note(note_path)

    def restore() -> None:
        awake = dict(noted)
        for deployment in read_deployments(client):
            now, were = deployment.schedules, before.get(deployment.id, [])
            left_awake = noted.get(str(deployment.id))
            for schedule in (schedule for schedule in now if schedule.slug == SLUG):
                awake[str(deployment.id)] = schedule.active
                changed = [was.active for was in were if was.slug == SLUG and left_awake not in (None, was.active)]
                if changed and changed[0] != schedule.active:
                    client.update_deployment_schedule(deployment.id, schedule.id, active=changed[0])
            _restore_own(client, deployment.id, now, were)
        write_json_atomically(note_path, awake)

    try:
        yield
    except BaseException:
        with contextlib.suppress(httpx.HTTPError):  # the server may be what failed
            restore()
        raise
    restore()


def _restore_own(
    client: SyncPrefectClient, deployment_id: UUID, now: list[DeploymentSchedule], were: list[DeploymentSchedule]
) -> None:
    there = {schedule.id for schedule in now}
    lost = [
        was.model_dump(mode="json", include=KEPT_OF_SCHEDULES)
        for was in were
        if was.slug != SLUG and was.id not in there
    ]
    if lost:
        client.request("POST", "/deployments/{id}/schedules", path_params={"id": deployment_id}, json=lost)
