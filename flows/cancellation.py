"""Whether somebody cancels or suspends a flow run in Prefect.

A worker tells of a cancellation by a SIGTERM like any other, and of a suspension not at all.
"""

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.context import FlowRunContext

from flows.shown_attempts import API_ERRORS
from kdgat.cluster import StopRequest

POLL_S: Final = 5.0
CANCELLED: Final = frozenset({StateType.CANCELLING, StateType.CANCELLED})
# Suspended, or resumed by now, so that another process begins with it as soon as this one has ended.
SUSPENDED: Final = frozenset({StateType.PAUSED, StateType.SCHEDULED, StateType.PENDING})


def is_cancelling() -> bool:
    """Tell whether this flow run is being cancelled, or one that it is a part of; false outside of flow runs."""
    return any(state.type in CANCELLED for state in _states())


def reason_to_stop() -> str:
    """Return why this flow run, or one that it is a part of, shall stop; "" if it may go on."""
    types = {state.type for state in _states()}
    if types & CANCELLED:
        return "a cancellation in Prefect"
    return "a suspension in Prefect" if types & SUSPENDED else ""


def in_any_thread() -> Callable[[], bool]:
    """Return `is_cancelling` for the flow run of the calling thread, to be called in any other."""
    return functools.partial(contextvars.copy_context().run, is_cancelling)


@contextlib.contextmanager
def stopping_with_prefect(stop: StopRequest) -> Iterator[None]:
    """Ask to stop as soon as the flow run of the calling thread is cancelled or suspended; nothing outside of one."""
    if FlowRunContext.get() is None:
        yield
        return
    is_over = threading.Event()
    watch = threading.Thread(target=contextvars.copy_context().run, args=(_watch, stop, is_over), daemon=True)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()


def _watch(stop: StopRequest, is_over: threading.Event) -> None:
    while not is_over.wait(POLL_S):
        try:
            if reason := reason_to_stop():
                stop.set(reason)
                return
        except API_ERRORS as error:
            get_run_logger().warning("Prefect does not say whether this run is to stop, asking again: %s", error)


def _states() -> Iterator[State[Any]]:
    """Yield the state of the flow run of this context, then those of the runs that it is a part of."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    run_id: UUID | None = context.flow_run.id
    with get_client(sync_client=True) as client:
        while run_id is not None:
            flow_run = client.read_flow_run(run_id)
            if flow_run.state is not None:
                yield flow_run.state
            if flow_run.parent_task_run_id is None:
                return
            run_id = client.read_task_run(flow_run.parent_task_run_id).flow_run_id
