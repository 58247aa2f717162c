"""A run of any family: one task run per stage, in the order that the plan allows.

A task makes the stage's run directory and starts the child process that does the work, so the flow itself holds no
model and no data, and whatever happens to it, the directories say how far the run came.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import CrashedRun, FailedRun
from prefect.futures import PrefectConcurrentFuture
from prefect.states import Cancelled, Completed, Failed

from flows.attempts import Conclusion, Stage, of_outcome, run_to_end
from flows.cancellation import in_any_thread, stopping_with_prefect
from flows.embedded.server import prefect_api
from flows.execution import Execution, num_parallel_stages, num_ranks_of
from flows.lost_runs import mark_lost_runs
from flows.naming import artifact_scope
from flows.shown_attempts import TotalProgress, publish_attempts, shown
from flows.signals import leave, stop_on_signals
from flows.suspension import held, suspended_in_order
from kdgat.cluster import AttemptLedger, AttemptLimits, ResourceRequest, Site, StopRequest, decide
from kdgat.cluster.decision import LONGEST_OUTAGE_DELAY_S, History, Retry
from kdgat.cluster.ending import AttemptEnd
from kdgat.cluster.history import finished_outcome
from kdgat.run import EVALUATION, OutputDirectory, PlannedStage, Run, RunEnd, StageState
from kdgat.run.directory import DONE_STATES
from kdgat.stage import Failed as StageFailed
from kdgat.stage import FailureKind, Finished, StageBusyError
from kdgat.stage.faults import is_environment_fault, with_causes

logger = logging.getLogger(__name__)

T = TypeVar("T")
WAIT_S: Final = 1.0
StageFuture = PrefectConcurrentFuture[Any]
Futures = dict[str, StageFuture]  # by name of the stage
# Writes the results of a run whose evaluations are done, and says in one sentence what they are.
Publish = Callable[[OutputDirectory, Sequence[StageFuture]], str]


@task(name="stage", task_run_name="{planned.name}", cache_policy=NO_CACHE, retries=0, persist_result=False)
def run_stage(planned: PlannedStage, execution: Execution, stop: StopRequest) -> State[Any]:
    """Run one stage to its end and return how it ended as a state whose message a person can act on."""
    try:
        return bearing_faults(
            lambda: _run_stage(planned, execution, stop),
            stop,
            AttemptLimits.of(execution.site),
            lambda text: execution.note(planned, text),
            execution.output,
        )
    except (ValueError, OSError) as error:  # for instance a recording that cannot be read
        if stop.is_set() and is_environment_fault(error):
            return Cancelled(message=execution.fail(planned, error, StageState.PAUSED))
        return Failed(message=execution.fail(planned, error))


def bearing_faults(
    action: Callable[[], T],
    stop: StopRequest,
    limits: AttemptLimits,
    say: Callable[[str], object],
    output: OutputDirectory,
) -> T:
    """Do what can be done again, as often and as late as an attempt would be begun again on a broken filesystem."""
    ends: list[AttemptEnd] = []
    while True:
        began = time.monotonic()
        try:
            return action()
        except (ValueError, OSError) as error:
            if stop.is_set() or not _passes(error, output):
                raise
            if time.monotonic() - began > LONGEST_OUTAGE_DELAY_S:  # it went on meanwhile
                ends.clear()
            end = of_outcome(StageFailed(kind=FailureKind.ENVIRONMENT, evidence=str(error)))
            decision = decide(end, History(ends=tuple(ends)), limits)
            if not isinstance(decision, Retry):
                raise
            ends.append(end)
            text = f"asked again in {decision.delay_s:.0f} s: {error}"  # nothing was begun that would start again
            get_run_logger().warning("%s", text)
            say(text)
            stop.wait(decision.delay_s)


def _passes(error: ValueError | OSError, output: OutputDirectory) -> bool:
    """Tell whether an error is one of the filesystem, or all of the output is away, and not of who works there."""
    causes = list(with_causes(error))
    if any(isinstance(one, StageBusyError) for one in causes):
        return False
    places = (output.path, output.slurm_path)  # where nothing lies that a stage reads
    missing = [Path(str(one.filename)).parent for one in causes if isinstance(one, FileNotFoundError)]
    return is_environment_fault(error) or any(folder in places for folder in missing)


def _run_stage(planned: PlannedStage, execution: Execution, stop: StopRequest) -> State[Any]:
    logger = get_run_logger()
    directory = execution.open_directory(planned)
    for text in execution.cancel_orphans():
        logger.warning("%s", text)
    if finished_outcome(directory) is not None and (text := directory.reopen()):
        logger.warning("%s: %s", planned.name, text)
        execution.note(planned, text)
        directory = execution.open_directory(planned)
    if (outcome := finished_outcome(directory)) is not None:
        execution.conclude(planned, directory, Conclusion(outcome, attempts=0))
        message = execution.index.record(planned.name).message
        message = message or "finished before, with the same inputs and configuration"
        logger.info("%s: %s", message, directory.path)
        return Completed(name="Cached", message=message)
    logger.info("run directory %s", directory.path)

    def log(line: str) -> None:
        logger.info("%s", line)
        execution.note(planned, line)

    if not AttemptLedger(directory).records and (text := execution.describe_rerun(planned)):
        log(f"runs again: {text}")
    if planned.parts and execution.num_pool_workers and not execution.has_job(directory):
        execution.pool().make_parts(planned.parts, directory, execution.resources(planned), stop, log)
    scope = artifact_scope(execution.run, execution.output)
    resources, changes = execution.adapted_resources(planned, directory)
    for sentence in changes:
        log(sentence)
    conclusion = run_to_end(
        Stage(
            directory,
            runner=execution.runner(planned),
            stop=stop,
            attempt_context=shown(planned.name, lambda message: execution.note(planned, message), scope),
            on_line=log,
            resources=resources,
            limits=AttemptLimits.of(execution.site),
            usage_path=execution.usage_path,
        )
    )
    execution.conclude(planned, directory, conclusion)
    match conclusion.outcome:
        case Finished() as finished:
            return Completed(message=finished.describe_metrics())
        case StageFailed() as failed:
            return Failed(message=failed.describe())
        case paused:
            return Cancelled(message=f"{paused.reason}; the next run goes on from its checkpoint")


def execute(
    run: Run,
    output: OutputDirectory,
    site: Site,
    command_line: ResourceRequest,
    parallel_stages: int | None,
    pool: int,
    publish: Publish,
) -> State[Any]:
    """Run the stages of a plan inside a flow run and return how it ended.

    Args:
        run: what to execute.
        output: stages that finished in it before with the same inputs and configuration are not run again, those that
            were stopped resume from their checkpoints.
        site: where the stages run.
        command_line: what every job asks for instead of what configuration and site say.
        parallel_stages: how many stages run side by side; by default as many as the processors or the site allow.
        pool: how many workers at most make the parts of a preparation ahead of it, side by side; 0 for none.
        publish: writes the results of a run whose evaluations are done, and says in one sentence what they are.
    """
    stop = StopRequest()
    started = time.time()

    def begin(action: Callable[[], T]) -> T:
        return bearing_faults(action, stop, AttemptLimits.of(site), lambda text: None, output)

    with suspended_in_order(), site.creating_files(), contextlib.ExitStack() as stack:
        owner = begin(lambda: stack.enter_context(held(output.lock)))
        mark_lost_runs(output)
        execution = begin(lambda: Execution(run, output, site, command_line, pool))
        signals, prefect = stop_on_signals(stop, site, in_any_thread()), stopping_with_prefect(stop)
        with contextlib.closing(execution), signals, prefect:
            try:
                num_ranks = max(map(num_ranks_of, run.plan), default=1)
                num_stages = num_parallel_stages(
                    run.num_threads, site, parallel_stages, len(execution.gpus), num_ranks
                )  # fmt: skip
                futures = _run_stages(execution, stop, num_stages, owner.successor)
            except BaseException as error:
                leave(stop, site, f"the flow ended with {type(error).__name__}")  # the runner waits for its threads
                raise
        try:
            publish_attempts(output, started, artifact_scope(run, output))
        except (OSError, ValueError) as error:  # a table for whoever looks, of what the files say
            get_run_logger().warning("no table of attempts: %s", error)
        return _conclude(execution, stop, publish, futures)


def _run_stages(execution: Execution, stop: StopRequest, parallel_stages: int, successor: Callable[[], str]) -> Futures:
    futures: Futures = {}
    total = TotalProgress(artifact_scope(execution.run, execution.output), execution.describe_left)
    while not execution.is_over():
        if not stop.is_set() and (reason := successor()):
            leave(stop, execution.site, reason)
        if stop.is_set():
            execution.block_rest(_stopped(stop))
        execution.fail_ended({name for name, future in futures.items() if future.wrapped_future.done()})
        execution.block_unreachable()
        for planned in execution.startable(parallel_stages - execution.num_running()):
            needed = [futures[name] for name in planned.depends_on]
            futures[planned.name] = run_stage.submit(  # type: ignore[call-overload]
                planned, execution, stop, wait_for=needed
            )
        total(execution.index.stages)
        execution.wait_for_change(WAIT_S)
    for future in futures.values():
        future.wait()
    total(execution.index.stages)
    return futures


def _conclude(execution: Execution, stop: StopRequest, publish: Publish, futures: Futures) -> State[Any]:
    failed = execution.in_state(StageState.FAILED)
    if failed:
        return Failed(message="; ".join(f"{record.name}: {record.message}" for record in failed))
    if not all(record.state in DONE_STATES for record in execution.index.stages):
        paused = "; ".join(f"{record.name}: {record.message}" for record in execution.in_state(StageState.PAUSED))
        return Cancelled(message=_stopped(stop) if stop.is_set() else paused)
    evaluations = [futures[planned.name] for planned in execution.run.plan if planned.stage == EVALUATION]
    if not evaluations:
        return Completed(message="all stages that were asked for are done; evaluation was not")

    def finish() -> str:
        execution.output.write_index(execution.index)  # what is published is found by it
        return publish(execution.output, evaluations)

    limits = AttemptLimits.of(execution.site)
    return Completed(message=bearing_faults(finish, stop, limits, lambda text: None, execution.output))


def _stopped(stop: StopRequest) -> str:
    return f"left on {stop.reason}, jobs go on" if stop.leaves_jobs else f"stopped by {stop.reason}"


def run_flow(flow: Callable[..., State[Any]], output: OutputDirectory, site: Site, **parameters: Any) -> RunEnd:
    """Run a flow that ends as `execute` does, against the configured Prefect API or an embedded one.

    Raises:
        RunError: if another process trains into the same output directory.
        UserError: if the embedded Prefect API does not come up.
    """
    with site.creating_files(), prefect_api(output.prefect_database_path, output.prefect_log_path):
        state = flow(out=output.path, site=site, **parameters, return_state=True)
        if state.is_failed() or state.is_crashed():
            with contextlib.suppress(FailedRun, CrashedRun):  # a state that the flow returned: its message says it all
                state.result()  # raises what the flow raised
            return RunEnd("failed", state.message or "")
        return RunEnd("stopped" if state.is_cancelled() else "completed", state.message or "")
