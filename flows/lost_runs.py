"""Flow runs that a killed process left behind as `Running`: nobody else will ever report their end."""

import os
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    TaskRunFilter,
    TaskRunFilterFlowRunId,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext
from prefect.states import Crashed

from kdgat.run import OutputDirectory

LOST = "FlowProcessLost"
OPEN_STATES = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def output_tag(output: OutputDirectory) -> str:
    """Return the tag that tells which output directory a flow run writes to."""
    return f"out:{output.path}"


def mark_lost_runs(output: OutputDirectory) -> int:
    """Mark earlier runs on this output directory that never reported their end as crashed, and tag this one.

    Whoever calls it holds the lock of the directory, which proves that no other run on it is alive.
    """
    context = FlowRunContext.get()
    current = context.flow_run if context is not None else None
    tag = output_tag(output)
    with get_client(sync_client=True) as client:
        if current is not None:
            client.update_flow_run(current.id, tags=sorted({*current.tags, tag}))
        states = [*OPEN_STATES, StateType.CRASHED]
        earlier = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                tags=FlowRunFilterTags(all_=[tag]),
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states)),
            )
        )
        earlier = [run for run in earlier if current is None or run.id != current.id]
        message = f"its process is gone; pid {os.getpid()} goes on with {output.path}"
        lost = [run for run in earlier if run.state_type in OPEN_STATES]
        for run in lost:
            crash(client, run.id, message)
        # What an automation has crashed meanwhile has task runs that still seem to run.
        if crashed := [run.id for run in earlier if run not in lost]:
            _crash_tasks(client, crashed, Crashed(name=LOST, message=message))
    return len(lost)


def _crash_tasks(client: SyncPrefectClient, run_ids: list[UUID], state: State[None]) -> None:
    for task_run in client.read_task_runs(
        task_run_filter=TaskRunFilter(
            flow_run_id=TaskRunFilterFlowRunId(any_=run_ids),
            state=TaskRunFilterState(type=TaskRunFilterStateType(any_=OPEN_STATES)),
        )
    ):
        client.set_task_run_state(task_run.id, state, force=True)


def crash(client: SyncPrefectClient, run_id: UUID, message: str) -> None:
    """Mark a flow run, its open task runs and the flow runs within it as crashed."""
    state: State[None] = Crashed(name=LOST, message=message)
    client.set_flow_run_state(run_id, state, force=True)
    _crash_tasks(client, [run_id], state)
    for below in client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[run_id]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=OPEN_STATES)),
        )
    ):
        crash(client, below.id, message)
