"""One stage, run to its end: attempt after attempt, for as long as `decide` says so.

Knows neither Prefect nor Slurm: `LocalAttempts` here and `SlurmAttempts` beside it run single attempts.
"""

import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from kdgat.cluster import AttemptLedger, AttemptRecord, EndKind, Resources, Site, StopRequest, decide
from kdgat.cluster.child import OnLine, OnProgress, checkpoint_marker, describe_limit, run_child
from kdgat.cluster.decision import Decision, History, Retry
from kdgat.cluster.ending import AttemptEnd, Because, of_outcome
from kdgat.cluster.report import JobFiles
from kdgat.cluster.usage import append_usage, run_name, usage_of
from kdgat.stage import (
    Failed,
    FailureKind,
    Finished,
    Outcome,
    Paused,
    RunDirectory,
    RunDirectoryError,
    StageBusyError,
    Work,
)
from kdgat.stage.faults import is_environment_fault

FLOW_LOST: Final = "FlowProcessLost"
LIVING_S: Final = 600.0  # since its last sign of life, and a job counts as one that trains

OnState = Callable[[str, str], None]  # name and message of what the attempt does now, while it does not train


@dataclass(frozen=True)
class Attempt:
    """One attempt that is about to run, and whom to tell what."""

    directory: RunDirectory
    record: AttemptRecord
    ledger: AttemptLedger
    history: History
    stop: StopRequest
    on_line: OnLine
    on_progress: OnProgress
    on_state: OnState = lambda name, message: None
    is_left: bool = False  # begun by a command that is gone


class AttemptRunner(Protocol):
    """Run attempts somewhere."""

    jobs_outlive: bool  # whether an attempt goes on without the process that began it

    def run(self, attempt: Attempt) -> AttemptEnd:
        """Run one attempt and return how it ended."""

    def close(self) -> None:
        """Give back what attempts shared."""


@dataclass(frozen=True)
class AttemptResult:
    """An attempt with what was decided about it."""

    end: AttemptEnd
    decision: Decision

    def describe(self) -> str:
        """Describe in one line what happened, where, and what follows; a checkpoint is named once."""
        follows = self.decision.reason
        end = self.end.describe(name_checkpoint=not self.end.checkpoint or self.end.checkpoint not in follows)
        return f"{end} -> {follows}"


AttemptBody = Callable[[OnLine, OnProgress, OnState], AttemptResult]
# Calls the function that it is given, with whatever shows an attempt to people around it.
AttemptContext = Callable[[AttemptRecord, AttemptBody], AttemptResult]


@dataclass(frozen=True)
class Conclusion:
    """How a stage ended after all its attempts; paused means that somebody asked it to stop."""

    outcome: Outcome
    attempts: int


@dataclass
class Stage:
    """What it takes to run a stage to its end."""

    directory: RunDirectory
    runner: AttemptRunner
    stop: StopRequest
    attempt_context: AttemptContext
    on_line: OnLine
    resources: Resources | None = None
    site: Site = field(default_factory=lambda: Site(name="local"))
    usage_path: Path | None = None  # where what attempts took is noted for later runs


def run_to_end(stage: Stage) -> Conclusion:
    """Run the stage of a directory until it finishes, fails, is asked to stop, or gets nowhere."""
    ledger = AttemptLedger(stage.directory)
    left = []
    for record in ledger.left_open():
        if stage.runner.jobs_outlive and record.resources is not None:
            left.append(record)
        else:
            _refuse_living_job(stage.directory, record)
            ledger.abandon(record, FLOW_LOST, "its process was told to write a checkpoint and leave", Because.FILES)
    outcome = stage.directory.read_outcome()
    if isinstance(outcome, Finished) and not left:
        return Conclusion(outcome, 0)
    count = 0
    while True:
        if stage.stop.is_set() and not left:
            checkpoint = stage.directory.newest_checkpoint()
            return Conclusion(Paused(checkpoint=checkpoint, reason=stage.stop.reason), count)
        result = _run_attempt(stage, ledger, left.pop(0) if left else None)
        count, end, decision = count + 1, result.end, result.decision
        if left:
            continue
        if not isinstance(decision, Retry) or (stage.stop.is_set() and end.kind is not EndKind.FAILED):
            return Conclusion(_outcome(end, decision, stage.stop), count)
        stage.on_line(f"attempt {ledger.records[-1].number}: {end.kind.value}: {result.describe()}")
        stage.stop.wait(decision.delay_s)


def _refuse_living_job(directory: RunDirectory, record: AttemptRecord) -> None:
    """Raise StageBusyError where a job of a cluster trains the stage that is to run elsewhere now."""
    seen_s_ago = JobFiles(directory, record.job_id).last_sign_s() if record.job_id else None
    if seen_s_ago is not None and seen_s_ago < LIVING_S:
        raise StageBusyError(
            f"job {record.job_id} trains {directory.path.name}: give --site as before, and it is watched on; "
            f"or end it, by `scancel {record.job_id}`"
        )


def _run_attempt(stage: Stage, ledger: AttemptLedger, left: AttemptRecord | None) -> AttemptResult:
    before = stage.directory.read_work() if left is None else None
    history = ledger.history(stage.resources, stage.site)
    record = left or ledger.open(history.resources, history.excluded_nodes)
    history = replace(history, resources=record.resources, excluded_nodes=frozenset(record.excluded_nodes))

    def body(on_line: OnLine, on_progress: OnProgress, on_state: OnState) -> AttemptResult:
        attempt = Attempt(
            stage.directory,
            record,
            ledger,
            history,
            stage.stop,
            on_line,
            on_progress,
            on_state,
            left is not None,
        )
        try:
            end = stage.runner.run(attempt)
        except (ValueError, OSError) as error:
            if not is_environment_fault(error):  # before there was any job
                ledger.abandon(record, type(error).__name__, str(error), Because.FILES)
                raise
            checkpoint = ""
            with contextlib.suppress(OSError):
                checkpoint = stage.directory.newest_checkpoint()
            # Of this machine: no node is to blame.
            end = of_outcome(Failed(kind=FailureKind.ENVIRONMENT, evidence=str(error)), checkpoint=checkpoint)
        decision = decide(end, history, stage.site)
        if end.because is None:  # its record stays open, for the next command
            return AttemptResult(end, decision)
        if isinstance(decision, Retry) and stage.stop.is_set():
            source = end.checkpoint or "the start of the stage"
            decision = replace(decision, reason=f"{stage.stop.reason}: the next run goes on from {source}")
        ledger.close(record, end, decision)
        _note_usage(stage, record, before)
        return AttemptResult(end, decision)

    return stage.attempt_context(record, body)


def _note_usage(stage: Stage, record: AttemptRecord, before: Work | None) -> None:
    """Note what an attempt took, for estimates of later runs; nothing where no process of the stage began."""
    work = stage.directory.read_work()
    if work is None or (before is not None and work.started == before.started):
        return
    with contextlib.suppress(OSError, RunDirectoryError):  # the filesystem is not there: the attempt itself is noted
        run = run_name(stage.usage_path or Path(), stage.directory)
        usage = usage_of(record, work, stage.directory.read_spec(), run)
        if stage.usage_path is not None:
            append_usage(stage.usage_path, usage)
        if usage.asked is not None:
            stage.on_line(f"attempt {record.number} used {usage.describe()}")


def _outcome(end: AttemptEnd, decision: Decision, stop: StopRequest) -> Outcome:
    """State how the stage ended, given how its last attempt did."""
    if end.is_of_environment:  # how often, and since when, says more than what the last attempt met
        return Failed(kind=FailureKind.ENVIRONMENT, evidence=decision.reason)
    if isinstance(end.outcome, Finished | Failed):
        return end.outcome
    if stop.is_set() and end.kind is not EndKind.DETACHED:
        return Paused(checkpoint=end.checkpoint, reason=stop.reason)
    if end.kind in (EndKind.CANCELLED, EndKind.DETACHED):
        return Paused(checkpoint=end.checkpoint, reason=decision.reason)
    return Failed(kind=FailureKind.ERROR, evidence=decision.reason)


class LocalAttempts:
    """Run each attempt as a child process on this machine; the kernel ends it with this process."""

    jobs_outlive = False

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    def run(self, attempt: Attempt) -> AttemptEnd:
        """Run one child process to its end."""
        directory, before = attempt.directory, checkpoint_marker(attempt.directory)
        attempt.ledger.started(attempt.record)
        end = run_child(
            directory,
            stop=attempt.stop,
            environment=self.environment,
            on_line=attempt.on_line,
            on_progress=attempt.on_progress,
        )
        common: dict[str, Any] = {
            "checkpoint": directory.newest_checkpoint(),
            "made_progress": checkpoint_marker(directory) != before,
            "peak_memory_mib": end.peak_memory_mib,
        }
        if end.outcome is not None:
            return of_outcome(end.outcome, **common)
        name = signal.Signals(-end.status).name
        message = f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else describe_limit(-end.status))
        return AttemptEnd(EndKind.PROCESS_KILLED, message, **common, signal=-end.status)

    def close(self) -> None:
        """Do nothing: attempts share nothing."""
