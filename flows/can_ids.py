"""The flow `can-ids`: recorded CAN traffic in, a trained, calibrated and evaluated detector out.

One task run per stage. A task makes the stage's run directory and starts the child process that does the work, so the
flow itself holds no model and no data, and whatever happens to it, the directories say how far the run came.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import CrashedRun, FailedRun, PrefectException
from prefect.futures import PrefectConcurrentFuture
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from pydantic import PositiveInt

from flows.attempts import Conclusion, StopRequest, run_to_end
from flows.execution import DONE_STATES, Execution, as_output, default_parallel_stages
from flows.lost_runs import mark_lost_runs
from flows.publication import publish_results
from flows.server import prefect_api
from flows.signals import stop_on_signals
from kdgat.can.config import CanConfig
from kdgat.can.plan import PlannedStage
from kdgat.can.run import OutputDirectory, StageState
from kdgat.can.stage_progress import describe_progress, fraction_done
from kdgat.stage.outcome import Failed as StageFailed
from kdgat.stage.outcome import Finished

FLOW_NAME: Final = "can-ids"
WAIT_S: Final = 1.0
CANCEL_POLL_S: Final = 5.0
PROGRESS_INTERVAL_S: Final = 3.0
# What a Prefect API that is busy or gone for a while makes its client raise: no reason to stop training.
API_ERRORS: Final = (httpx.HTTPError, PrefectException)


@task(name="stage", task_run_name="{planned.name}", cache_policy=NO_CACHE, persist_result=False)
def run_stage(planned: PlannedStage, execution: Execution, stop: StopRequest) -> State[Any]:
    """Run one stage to its end and return how it ended as a state whose message a person can act on."""
    try:
        return _run_stage(planned, execution, stop)
    except (ValueError, OSError) as error:  # for instance a recording that cannot be read
        execution.fail(planned, error)
        return Failed(message=str(error))


def _run_stage(planned: PlannedStage, execution: Execution, stop: StopRequest) -> State[Any]:
    logger = get_run_logger()
    directory = execution.open_directory(planned)
    outcome = directory.read_outcome()
    if isinstance(outcome, Finished):
        execution.conclude(planned, directory, Conclusion(outcome, attempts=0))
        logger.info("finished before, with the same inputs and configuration: %s", directory.path)
        return Completed(name="Cached", message=f"{directory.path.name} had finished before")
    logger.info("run directory %s", directory.path)
    conclusion = run_to_end(
        directory,
        stop=stop,
        environment=execution.environment(),
        on_line=lambda line: logger.info("%s", line),
        on_progress=ProgressArtifact(planned.name),
    )
    execution.conclude(planned, directory, conclusion)
    match conclusion.outcome:
        case Finished(metrics=metrics):
            return Completed(message=", ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
        case StageFailed(kind=kind, evidence=evidence):
            return Failed(message=f"{kind}: {evidence}")
        case paused:
            return Cancelled(message=f"{paused.reason}; the next run goes on from its checkpoint")


class ProgressArtifact:
    """The progress bar of one task run in the Prefect UI, rate-limited."""

    def __init__(self, name: str) -> None:
        self.key = name.replace("_", "-")
        self._artifact_id: Any = None
        self._next_update = 0.0

    def __call__(self, progress: dict[str, Any]) -> None:
        """Show what `progress.json` says."""
        if time.monotonic() < self._next_update:
            return
        self._next_update = time.monotonic() + PROGRESS_INTERVAL_S
        percent, words = round(100.0 * fraction_done(progress), 1), describe_progress(progress)
        try:
            if self._artifact_id is None:
                self._artifact_id = create_progress_artifact(percent, key=self.key, description=words)
            else:
                update_progress_artifact(self._artifact_id, percent, description=words)
        except API_ERRORS as error:
            get_run_logger().warning("no progress in Prefect, training goes on: %s", error)


@flow(
    name=FLOW_NAME,
    flow_run_name="{config.data.dataset}",
    task_runner=ThreadPoolTaskRunner(),  # type: ignore[arg-type]
    persist_result=False,
)
def can_ids(config: CanConfig, out: Path, parallel_stages: PositiveInt | None = None) -> State[Any]:
    """Train, calibrate and evaluate CAN intrusion detectors; see `kdgat plan can` for the stages.

    Args:
        config: everything the run depends on.
        out: output directory. Stages that finished in it before with the same inputs and configuration are not run
            again, those that were stopped go on from their checkpoints.
        parallel_stages: how many stages run side by side; as many as the processors allow by default.
    """
    output = as_output(out)
    stop = StopRequest()
    with output.lock():
        mark_lost_runs(output)
        execution = Execution(config, output)
        with stop_on_signals(stop):
            try:
                _run_stages(execution, stop, parallel_stages or default_parallel_stages(config))
            except BaseException as error:
                stop.set(f"the flow ended with {type(error).__name__}")  # the runner waits for its threads
                raise
        return _conclude(execution, stop)


def _run_stages(execution: Execution, stop: StopRequest, parallel_stages: int) -> None:
    futures: dict[str, PrefectConcurrentFuture[Any]] = {}
    next_poll = time.monotonic() + CANCEL_POLL_S
    while not execution.is_over():
        if stop.is_set():
            execution.block_rest(f"stopped by {stop.reason}")
        execution.fail_ended({name for name, future in futures.items() if future.wrapped_future.done()})
        execution.block_unreachable()
        for planned in execution.startable(parallel_stages - execution.num_running()):
            needed = [futures[name] for name in planned.depends_on]
            futures[planned.name] = run_stage.submit(  # type: ignore[call-overload]
                planned, execution, stop, wait_for=needed
            )
        if time.monotonic() > next_poll:
            next_poll = time.monotonic() + CANCEL_POLL_S
            try:
                if _is_cancelling():
                    stop.set("a cancellation in Prefect")
            except API_ERRORS as error:
                get_run_logger().warning("Prefect does not say whether this run is cancelled, asking again: %s", error)
        execution.wait_for_change(WAIT_S)
    for future in futures.values():
        future.wait()


def _conclude(execution: Execution, stop: StopRequest) -> State[Any]:
    failed = execution.in_state(StageState.FAILED)
    if failed:
        return Failed(message="; ".join(f"{record.name}: {record.message}" for record in failed))
    if not all(record.state in DONE_STATES for record in execution.index.stages):
        return Cancelled(message=f"stopped by {stop.reason}")
    if not any(planned.stage == "evaluation" for planned in execution.plan):
        return Completed(message="all stages that were asked for are done; evaluation was not")
    return Completed(message=publish_results(execution.output))


def _is_cancelling() -> bool:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return False
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(context.flow_run.id).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())


@dataclass(frozen=True)
class RunEnd:
    """How a run of the flow ended, for callers that know nothing of Prefect."""

    state: Literal["completed", "stopped", "failed"]
    message: str


def run_can_ids(config: CanConfig, output: OutputDirectory, parallel_stages: int | None = None) -> RunEnd:
    """Run the flow against the configured Prefect API, or an embedded one.

    Raises:
        RunError: if another process trains into the same output directory.
        ServerStartError: if the embedded Prefect API does not come up.
    """
    output.path.mkdir(parents=True, exist_ok=True)
    with prefect_api(output.prefect_database_path, output.prefect_log_path):
        state: State[Any] = can_ids(config, output.path, parallel_stages, return_state=True)
        if state.is_failed() or state.is_crashed():
            with contextlib.suppress(FailedRun, CrashedRun):  # a state that the flow returned: its message says it all
                state.result()  # raises what the flow raised
            return RunEnd("failed", state.message or "")
        return RunEnd("stopped" if state.is_cancelled() else "completed", state.message or "")
