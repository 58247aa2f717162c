"""One stage of a plan, from its directory to its conclusion. Knows no Prefect: it may begin before there is an API."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from flows.attempts import AttemptContext, Conclusion, Stage, run_to_end
from flows.execution import Execution
from kdgat.cluster import AttemptLedger, Site, StopRequest, decide
from kdgat.cluster.attempts import finished_outcome
from kdgat.cluster.decision import LONGEST_OUTAGE_DELAY_S, History, Retry
from kdgat.cluster.ending import AttemptEnd, of_outcome
from kdgat.run import OutputDirectory, PlannedStage, StageState
from kdgat.stage import Failed, FailureKind, Finished, StageBusyError
from kdgat.stage.faults import is_environment_fault, with_causes

T = TypeVar("T")
Log = Callable[[int, str], object]  # gets a level of `logging`, and a line


@dataclass(frozen=True)
class StageEnd:
    """How a stage ended, with a message that a person can act on."""

    kind: Literal["finished", "cached", "failed", "paused"]
    message: str


def perform(
    planned: PlannedStage, execution: Execution, stop: StopRequest, log: Log, context: AttemptContext
) -> StageEnd:
    """Run one stage to its end.

    Args:
        planned: the stage, which `execution` counts as running.
        execution: gets how it ended.
        stop: asks it to leave.
        log: gets what happens to it.
        context: shows its attempts.
    """

    def tell(text: str) -> None:
        log(logging.WARNING, text)
        execution.note(planned, text)

    try:
        return bearing_faults(
            lambda: _perform(planned, execution, stop, log, context), stop, execution.site, tell, execution.output
        )
    except (ValueError, OSError) as error:  # for instance a recording that cannot be read
        if stop.is_set() and is_environment_fault(error):
            return StageEnd("paused", execution.fail(planned, error, StageState.PAUSED))
        return StageEnd("failed", execution.fail(planned, error))


def bearing_faults(
    action: Callable[[], T],
    stop: StopRequest,
    site: Site,
    tell: Callable[[str], object],
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
            end = of_outcome(Failed(kind=FailureKind.ENVIRONMENT, evidence=str(error)))
            decision = decide(end, History(ends=tuple(ends)), site)
            if not isinstance(decision, Retry):
                raise
            ends.append(end)
            tell(f"asked again in {decision.delay_s:.0f} s: {error}")  # nothing was begun that would start again
            stop.wait(decision.delay_s)


def _passes(error: ValueError | OSError, output: OutputDirectory) -> bool:
    """Tell whether an error is one of the filesystem, or all of the output is away, and not of who works there."""
    causes = list(with_causes(error))
    if any(isinstance(one, StageBusyError) for one in causes):
        return False
    places = (output.path, output.slurm_path)  # where nothing lies that a stage reads
    missing = [Path(str(one.filename)).parent for one in causes if isinstance(one, FileNotFoundError)]
    return is_environment_fault(error) or any(folder in places for folder in missing)


def _perform(
    planned: PlannedStage, execution: Execution, stop: StopRequest, log: Log, context: AttemptContext
) -> StageEnd:
    directory = execution.open_directory(planned)
    for text in execution.cancel_orphans():
        log(logging.WARNING, text)
    if finished_outcome(directory) is not None and (text := directory.reopen()):
        log(logging.WARNING, f"{planned.name}: {text}")
        execution.note(planned, text)
        directory = execution.open_directory(planned)
    if (outcome := finished_outcome(directory)) is not None:
        execution.conclude(planned, directory, Conclusion(outcome, attempts=0))
        message = execution.index.record(planned.name).message
        message = message or "finished before, with the same inputs and configuration"
        log(logging.INFO, f"{message}: {directory.path}")
        return StageEnd("cached", message)
    log(logging.INFO, f"run directory {directory.path}")

    def tell(line: str) -> None:
        log(logging.INFO, line)
        execution.note(planned, line)

    if not AttemptLedger(directory).records and (text := execution.describe_rerun(planned)):
        tell(f"runs again: {text}")
    if planned.parts and execution.num_pool_workers and not execution.has_job(directory):
        execution.pool().make_parts(planned.parts, directory, execution.resources(planned), stop, tell)
    resources, changes = execution.adapted_resources(planned, directory)
    for sentence in changes:
        tell(sentence)
    conclusion = run_to_end(
        Stage(
            directory,
            runner=execution.runner(planned),
            stop=stop,
            attempt_context=context,
            on_line=tell,
            resources=resources,
            site=execution.site,
            usage_path=execution.usage_path,
        )
    )
    execution.conclude(planned, directory, conclusion)
    match conclusion.outcome:
        case Finished() as finished:
            return StageEnd("finished", finished.describe_metrics())
        case Failed() as failed:
            return StageEnd("failed", failed.describe())
        case paused:
            return StageEnd("paused", f"{paused.reason}; the next run goes on from its checkpoint")
