"""Attempts as the Prefect UI shows them: a bar each with its named state, its log, its progress, and a table."""

import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Completed, Crashed, Failed, Running

from flows.attempts import Around, OnState, Performed
from kdgat.can.run import OutputDirectory
from kdgat.can.stage_progress import describe_progress, fraction_done
from kdgat.cluster.child import OnLine, OnProgress
from kdgat.cluster.ending import EndKind
from kdgat.cluster.history import AttemptLedger, AttemptRecord

PROGRESS_INTERVAL_S: Final = 3.0
# What a Prefect API that is busy or gone for a while makes its client raise: no reason to stop training.
API_ERRORS: Final = (httpx.HTTPError, PrefectException)

Perform = Callable[[OnLine, OnProgress, OnState], Performed]


def shown(stage_name: str, on_news: OnLine) -> Around:
    """Return what gives each attempt at a stage a task run of its own, named after stage and attempt.

    `on_news` gets what an attempt does while it does not train: a job that waits, begins, or is asked to stop.
    """

    def around(record: AttemptRecord, perform: Perform) -> Performed:
        performed: list[Performed] = []
        name = f"{stage_name} attempt {record.number}"
        titled = run_attempt.with_options(task_run_name=name)
        state = titled(stage_name, perform, on_news, performed, return_state=True)
        if not performed:  # a bug or an interruption: nothing was decided
            state.result()
        return performed[0]

    return around


@task(name="attempt", cache_policy=NO_CACHE, persist_result=False)
def run_attempt(stage_name: str, perform: Perform, on_news: OnLine, performed: list[Performed]) -> State[Any]:
    """Run one attempt; the state says what happened and what follows."""
    logger = get_run_logger()
    context = TaskRunContext.get()

    def set_state(name: str, message: str) -> None:
        logger.info("%s", message)
        on_news(message)
        if context is not None:
            with contextlib.suppress(*API_ERRORS), get_client(sync_client=True) as client:
                client.set_task_run_state(context.task_run.id, Running(name=name, message=message), force=True)

    result = perform(lambda line: logger.info("%s", line), ProgressArtifact(stage_name), set_state)
    performed.append(result)
    return attempt_state(result)


def attempt_state(performed: Performed) -> State[Any]:
    """Name what happened to an attempt, where, from which checkpoint it goes on, and what was decided."""
    end, message = performed.end, f"{performed.end.describe()} -> {performed.decision.reason}"
    match end.kind:
        case EndKind.FINISHED:
            return Completed(message=end.describe())
        case EndKind.PAUSED:
            return Completed(name=end.kind.value, message=message)
        case EndKind.CANCELLED:
            return Cancelled(name=end.kind.value, message=message)
        case EndKind.FAILED | EndKind.REFUSED:
            return Failed(name=end.kind.value, message=message)
    return Crashed(name=end.kind.value, message=message)


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


def publish_attempts(output: OutputDirectory, started: float) -> None:
    """Put the table of all attempts since `started` (seconds since the epoch) into the Prefect UI."""
    rows = attempt_rows(output, started)
    if rows:
        with contextlib.suppress(*API_ERRORS):
            create_table_artifact(rows, key="attempts", description="every attempt of this run, and what followed it")


def attempt_rows(output: OutputDirectory, started: float = 0.0) -> list[dict[str, str]]:
    """List the attempts at the stages of a run that ended after `started`, in the order of the plan."""
    rows = []
    for stage in output.read_index().stages:
        if stage.directory is None:
            continue
        for record in AttemptLedger(output.stage_directory(stage)).records:
            if record.ended >= started:
                rows.append(_row(stage.name, record))
    return rows


def _row(stage_name: str, record: AttemptRecord) -> dict[str, str]:
    waited = (record.started or record.ended) - record.submitted if record.submitted else 0.0
    ran = record.ended - record.started if record.started else 0.0
    return {
        "stage": stage_name,
        "attempt": str(record.number),
        "job": record.job_id or "-",
        "node": record.node or "-",
        "asked for": record.resources.describe() if record.resources is not None else "-",
        "waited": f"{waited:.0f} s",
        "ran": f"{ran:.0f} s",
        "peak memory": f"{record.peak_memory_mib} MiB" if record.peak_memory_mib else "-",
        "end": record.end,
        "checkpoint": record.checkpoint or "-",
        "what followed": record.decision,
    }
