"""Whether somebody cancels a flow run in Prefect, whose worker says so by a SIGTERM like any other."""

import contextvars
import functools
from collections.abc import Callable

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext


def is_cancelling() -> bool:
    """Tell whether this flow run is being cancelled, or one that it is a part of; false outside of flow runs."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return False
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(context.flow_run.id)
        while not (flow_run.state is not None and (flow_run.state.is_cancelling() or flow_run.state.is_cancelled())):
            if flow_run.parent_task_run_id is None:
                return False
            parent = client.read_task_run(flow_run.parent_task_run_id).flow_run_id
            if parent is None:
                return False
            flow_run = client.read_flow_run(parent)
    return True


def in_any_thread() -> Callable[[], bool]:
    """Return `is_cancelling` for the flow run of the calling thread, to be called in any other."""
    return functools.partial(contextvars.copy_context().run, is_cancelling)
