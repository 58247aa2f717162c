"""Schedules that people have changed in the UI, kept when deployments are made again from `deployments/prefect.yaml`.

`prefect deploy` removes what the file does not name, and wakes what somebody has paused.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import DeploymentSchedule

from flows.deployment.server_content import read_deployments
from flows.deployment.service import read_note
from kdgat.base.files import write_json_atomically

SLUG: Final = "night"  # of the schedules that the file names
KEPT: Final = {"schedule", "active", "max_scheduled_runs", "parameters", "slug"}


@contextlib.contextmanager
def keeping_schedules(client: SyncPrefectClient, note_path: Path) -> Iterator[None]:
    """Restore afterwards, whatever happens, which nights people have paused or woken, and schedules of their own.

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
    lost = [was.model_dump(mode="json", include=KEPT) for was in were if was.slug != SLUG and was.id not in there]
    if lost:
        client.request("POST", "/deployments/{id}/schedules", path_params={"id": deployment_id}, json=lost)
