"""Suspend in Prefect stops a run as Cancel does, and Resume goes on from its checkpoints as Retry does.

Prefect ends every task of a suspended run at its next step, whatever that leaves behind. Here tasks come to the end
that they have at a cancellation, and the flow run is left as suspended once nothing of it runs any more.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar
from uuid import UUID

from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, Pause
from prefect.states import Cancelled

from flows.cancellation import SUSPENDED
from flows.shown_attempts import API_ERRORS
from kdgat.stage import StageBusyError

Held = TypeVar("Held")
NAME: Final = "Suspended"  # Prefect's own: another paused state keeps its process
SAVE_TIMEOUT_S: Final = 180.0  # for the process that a resumed run had before: it writes its checkpoints
API_TIMEOUT_S: Final = 60.0  # for an API that is silent while a run ends, which may be suspended
POLL_S: Final = 1.0
SAVED: Final = "its stages have written their checkpoints; Resume goes on from there"


@contextlib.contextmanager
def suspended_in_order() -> Iterator[None]:
    """Let what runs inside stop by itself when the flow run is suspended, and end the process after that.

    Raises:
        Pause: where the run is suspended and something ended in an error; Prefect ends the process at it, and asks
            for it itself where everything stopped in order.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None or context.flow_run.deployment_id is None:
        yield  # nobody can suspend it
        return
    request = context.flow_run_suspension_request
    request.raise_if_requested()
    try:
        with context.model_copy(update={"flow_run_suspension_request": type(request)()}):
            yield
    except BaseException as error:
        state = _left_suspended(context.flow_run)
        if state is None:
            raise
        # Also Prefect's own: it ends what has lost its place in the limit of its dataset, as a suspended run has.
        get_run_logger().warning("suspended, and ended with %s: %s", type(error).__name__, error)
        raise Pause(state=state) from error
    if state := _left_suspended(context.flow_run):
        request.mark_requested(state)  # Prefect looks at it before it would write how the flow ended


@contextlib.contextmanager
def held(lock: Callable[[], AbstractContextManager[Held]]) -> Iterator[Held]:
    """Hold a lock; a run that was resumed waits for the process that it had before, which may still be saving."""
    context = FlowRunContext.get()
    has_resumed = context is not None and context.flow_run is not None and context.flow_run.run_count > 1
    give_up_at = time.monotonic() + (SAVE_TIMEOUT_S if has_resumed else 0.0)
    with contextlib.ExitStack() as stack:
        while True:
            try:
                taken = stack.enter_context(lock())
                break
            except ValueError as error:
                if not isinstance(error.__cause__, StageBusyError) or time.monotonic() >= give_up_at:
                    raise
            time.sleep(POLL_S)
        yield taken


def _left_suspended(flow_run: FlowRun) -> State[Any] | None:
    """Return the state of a suspended run, said once more now that nothing of it runs; None if it is not suspended.

    The automation that notices dead processes has heard of this one until now: the state has to be the last it hears.
    """
    give_up_at = time.monotonic() + API_TIMEOUT_S
    known: set[UUID] = set()
    while True:
        try:
            with get_client(sync_client=True) as client:
                return _said_again(client, flow_run, known)
        except ObjectNotFound:  # somebody has removed it
            return None
        except API_ERRORS as error:
            is_late = time.monotonic() >= give_up_at
            end = "it ends as if it was not" if is_late else "asking again"
            get_run_logger().warning("Prefect does not say whether this run is suspended, %s: %s", end, error)
            if is_late:
                return None
        time.sleep(POLL_S)


def _said_again(client: SyncPrefectClient, flow_run: FlowRun, known: set[UUID]) -> State[Any] | None:
    """Say of a run once more that it is suspended, and put back whatever somebody set at the same time.

    Prefect suspends no run that is suspended, unless it is forced to, and then asks for no state of before. `known`
    has the ids of the states from before this was first tried, and is filled here.
    """
    if not known:
        known.update(state.id for state in client.read_flow_run_states(flow_run.id))
    state = client.read_flow_run(flow_run.id).state
    if state is None or state.type not in SUSPENDED:
        return None
    if not state.is_paused():  # resumed meanwhile: its next process has the say
        return state
    known.add(state.id)
    flow_run.state = Cancelled()  # in this process alone, which says that it lives until it believes in an end
    details = state.state_details.model_copy(update={"pause_reschedule": True})
    final: State[Any] = State(type=StateType.PAUSED, name=NAME, message=SAVED, state_details=details)
    client.set_flow_run_state(flow_run.id, final, force=True)
    missed = [one for one in client.read_flow_run_states(flow_run.id) if one.id not in known and one.message != SAVED]
    state = client.read_flow_run(flow_run.id).state
    if missed and state is not None and state.message == SAVED:  # Resume was pressed between the question and ours
        state = client.set_flow_run_state(flow_run.id, missed[-1], force=True).state
    return state if state is not None and state.type in SUSPENDED else None
