"""A run of any family: one task run per stage, in the order that the plan allows.

A task makes the stage's run directory and starts the child process that does the work, so the flow itself holds no
model and no data, and whatever happens to it, the directories say how far the run came.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from prefect import Flow, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import CrashedRun, FailedRun
from prefect.futures import PrefectConcurrentFuture
from prefect.states import Cancelled, Completed, Failed
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.urls import url_for

from flows.cancellation import in_any_thread, stopping_with_prefect
from flows.embedded.server import configured_api_url, prefect_api
from flows.execution import Execution
from flows.lost_runs import mark_lost_runs
from flows.naming import artifact_scope
from flows.open_run import BegunStage, OpenRun, open_run, opened_ahead
from flows.shown_attempts import StageLog, TotalProgress, publish_attempts, shown
from flows.signals import leave, stop_on_signals
from flows.stage_work import bearing_faults, perform
from flows.suspension import held, suspended_in_order
from kdgat.cluster import ResourceRequest, Site, StopRequest
from kdgat.run import EVALUATION, OutputDirectory, PlannedStage, Run, RunEnd, StageState
from kdgat.run.directory import DONE_STATES

WAIT_S: Final = 1.0
StageFuture = PrefectConcurrentFuture[Any]
Futures = dict[str, StageFuture]  # by name of the stage
# Writes the results of a run whose evaluations are done, and says in one sentence what they are.
Publish = Callable[[OutputDirectory, Sequence[StageFuture]], str]


def stages_flow(name: str, run_name: Callable[[], str]) -> Callable[[Callable[..., State[Any]]], Flow[..., State[Any]]]:
    """Return what makes a flow of which each stage is a task run."""
    runner: Any = ThreadPoolTaskRunner(sys.maxsize)
    return flow(name=name, flow_run_name=run_name, task_runner=runner, retries=0, persist_result=False)


@task(name="stage", task_run_name="{planned.name}", cache_policy=NO_CACHE, retries=0, persist_result=False)
def run_stage(planned: PlannedStage, execution: Execution, stop: StopRequest, begun: BegunStage | None) -> State[Any]:
    """Run one stage to its end, or show one that has begun, and return how it ended as a state a person can act on."""
    log, scope = get_run_logger().log, artifact_scope(execution.run, execution.output)
    if begun is not None:
        end = begun.follow(log, shown(planned.name, lambda message: None, scope))
    else:
        context = shown(planned.name, lambda message: execution.note(planned, message), scope)
        end = perform(planned, execution, stop, log, context)
    match end.kind:
        case "finished":
            return Completed(message=end.message)
        case "cached":
            return Completed(name="Cached", message=end.message)
        case "failed":
            return Failed(message=end.message)
        case "paused":
            return Cancelled(message=end.message)


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
    with suspended_in_order(), site.creating_files(), contextlib.ExitStack() as stack:
        opened = opened_ahead(output)
        if opened is None:
            opened = stack.enter_context(
                open_run(run, output, site, command_line, parallel_stages, pool, tell=_warn, held=held)
            )
        mark_lost_runs(output)
        execution, stop = opened.execution, opened.stop
        with stopping_with_prefect(stop), stop_on_signals(stop, site, in_any_thread()):
            try:
                futures = _run_stages(opened)
            except BaseException as error:
                leave(stop, site, f"the flow ended with {type(error).__name__}")  # the runner waits for its threads
                raise
        try:
            publish_attempts(output, opened.started, artifact_scope(run, output))
        except (OSError, ValueError) as error:  # a table for whoever looks, of what the files say
            get_run_logger().warning("no table of attempts: %s", error)
        return _conclude(execution, stop, publish, futures)


def _run_stages(opened: OpenRun) -> Futures:
    execution, stop, futures = opened.execution, opened.stop, Futures()
    total = TotalProgress(artifact_scope(execution.run, execution.output), execution.describe_left)
    told = StageLog()

    def submit(planned: PlannedStage) -> None:
        needed = [futures[name] for name in planned.depends_on]
        begun = opened.begun.get(planned.name)
        futures[planned.name] = run_stage.submit(  # type: ignore[call-overload]
            planned, execution, stop, begun, wait_for=needed
        )

    opened.take_over()
    for begun in opened.begun.values():
        submit(begun.planned)
        if not begun.thread.is_alive():  # of a run that is done, hundreds: one after the other
            futures[begun.planned.name].wait()
    while not execution.is_over():
        if not stop.is_set() and (reason := opened.owner.successor()):
            leave(stop, execution.site, reason)
        if stop.is_set():
            execution.block_rest(_stopped(stop))
        ended = {name for name, future in futures.items() if future.wrapped_future.done()}
        execution.fail_ended({name for name in ended if not opened.is_at_work(name)})
        execution.block_unreachable()
        for planned in opened.startable():
            submit(planned)
        total(execution.index.stages)
        told(execution.index.stages)
        execution.wait_for_change(WAIT_S)
    for future in futures.values():
        future.wait()
    total(execution.index.stages)
    told(execution.index.stages)
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

    return Completed(message=bearing_faults(finish, stop, execution.site, _warn, execution.output))


def _warn(text: str) -> None:
    get_run_logger().warning("%s", text)


def _stopped(stop: StopRequest) -> str:
    return f"left on {stop.reason}, jobs go on" if stop.leaves_jobs else f"stopped by {stop.reason}"


def _tell_page(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    print(f"in Prefect  {url_for(flow_run)}", file=sys.stderr)


def run_flow(flow: Flow[..., State[Any]], output: OutputDirectory, site: Site, **parameters: Any) -> RunEnd:
    """Run a flow that ends as `execute` does, against the configured Prefect API or an embedded one.

    Raises:
        RunError: if another process trains into the same output directory.
        UserError: if the embedded Prefect API does not come up.
        KeyboardInterrupt: if a run that was opened ahead is asked to stop before that.
    """
    opened = opened_ahead(output)
    require_wanted = opened.require_wanted if opened is not None else lambda: None
    if configured_api_url() is not None:  # the embedded server has no pages, and ends with the command
        flow = flow.with_options(on_running=[*flow.on_running_hooks, _tell_page])
    with site.creating_files(), prefect_api(output.prefect_database_path, output.prefect_log_path, require_wanted):
        if opened is not None:
            opened.leave_signals()
        state = flow(out=output.path, site=site, **parameters, return_state=True)
        if state.is_failed() or state.is_crashed():
            with contextlib.suppress(FailedRun, CrashedRun):  # a state that the flow returned: its message says it all
                state.result()  # raises what the flow raised
            return RunEnd("failed", state.message or "")
        return RunEnd("stopped" if state.is_cancelled() else "completed", state.message or "")
