"""Attempts as the Prefect UI shows them: a bar each with its named state, its log, its progress, and a table."""

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.exceptions import PrefectException
from prefect.states import Cancelled, Completed, Crashed, Failed, Running

from flows.attempts import AttemptBody, AttemptContext, AttemptResult
from flows.naming import artifact_key
from kdgat.cluster import AttemptRecord, EndKind
from kdgat.cluster.child import OnLine
from kdgat.report.markdown import as_tables, escaped
from kdgat.run import OutputDirectory, StageRecord, StageState, Table
from kdgat.run.attempts import attempt_rows, filled_columns
from kdgat.run.directory import DONE_STATES
from kdgat.run.progress import describe_progress, fraction_done

PROGRESS_INTERVAL_S: Final = 15.0  # each is a write to Prefect's database, and there may be a hundred attempts
LEFT_PAUSE: Final = 20  # times what it took to say what is left
LINE_INTERVAL_S: Final = 60.0  # of what a stage logs as it goes: `stage.log` has every line
# What a Prefect API that is busy or gone for a while makes its client raise: no reason to stop training.
API_ERRORS: Final = (httpx.HTTPError, PrefectException)
# A line of a stage's log: Prefect shows time and level of its own, once is enough.
LOG_LINE: Final = re.compile(r"[\d-]{10} [\d:,]{12} (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<text>.*)")
TRACEBACK: Final = "Traceback (most recent call last):"
METRICS_LINE: Final = "kdgat.stage.runner: finished: "  # the state of the stage says them
MOMENTARY: Final = (
    "graphs_per_s",
    "seconds_to_deadline",
    "left_low_s",
    "left_high_s",
    "epoch_left_s",
)  # of a progress, once the attempt is over
SENTENCES: Final = ("checkpoint", "what followed")  # too long for a column
IN_TOTAL: Final = {
    StageState.RUNNING: "running",
    StageState.PLANNED: "to come",
    StageState.PAUSED: "paused",
    StageState.FAILED: "failed",
    StageState.BLOCKED: "not started",
}

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
OUTER_LOG: Final = ContextVar[Log | None]("outer log", default=None)  # of the flow run that this one is a part of


def shown(stage_name: str, on_message: OnLine, scope: str) -> AttemptContext:
    """Return what gives each attempt at a stage a task run of its own, named after stage and attempt.

    Args:
        stage_name: in the plan of the run.
        on_message: gets what an attempt does while it does not train: a job that waits, begins, or is asked to stop.
        scope: what the keys of artifacts begin with, so that those of two datasets do not mix.
    """

    def attempt_context(record: AttemptRecord, body: AttemptBody) -> AttemptResult:
        results: list[AttemptResult] = []
        name = f"{stage_name} attempt {record.number}"
        titled = run_attempt.with_options(task_run_name=name)
        state = titled(artifact_key(scope, name), body, on_message, results, return_state=True)
        if not results:  # a bug or an interruption: nothing was decided
            state.result()
        return results[0]

    return attempt_context


@task(name="attempt", cache_policy=NO_CACHE, retries=0, persist_result=False)
def run_attempt(progress_key: str, body: AttemptBody, on_message: OnLine, results: list[AttemptResult]) -> State[Any]:
    """Run one attempt; the state says what happened and what follows."""
    logger = get_run_logger()
    context = TaskRunContext.get()

    def set_state(name: str, message: str) -> None:
        logger.info("%s", message)
        on_message(message)
        if context is not None:
            with contextlib.suppress(*API_ERRORS), get_client(sync_client=True) as client:
                client.set_task_run_state(context.task_run.id, Running(name=name, message=message), force=True)

    bar = ProgressArtifact(progress_key)
    result = body(StageLines(logger), bar, set_state)
    bar.close(result)
    results.append(result)
    return attempt_state(result)


class StageLines:
    """Log the lines of a stage, at the level that they had there; all on the terminal, the most telling in Prefect.

    Prefect keeps warnings, errors, tracebacks, what a process says that has not begun to log, and one line a minute.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._keeps_following = True  # the lines without a level that follow belong to one that Prefect keeps
        self._next_line = 0.0

    def __call__(self, line: str) -> None:
        """Log a line."""
        found = LOG_LINE.fullmatch(line)
        level = logging.getLevelNamesMapping()[found["level"]] if found else logging.INFO
        if found or line.startswith(TRACEBACK):
            self._keeps_following = not found or level >= logging.WARNING
        is_said = found is not None and found["text"].startswith(METRICS_LINE)
        is_kept = self._keeps_following or (time.monotonic() >= self._next_line and not is_said)
        if is_kept and not self._keeps_following:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
        self._log.log(level, "%s", found["text"] if found else line, extra={"send_to_api": is_kept})


def attempt_state(performed: AttemptResult) -> State[Any]:
    """Name what happened to an attempt, where, from which checkpoint it resumes, and what was decided."""
    end, message = performed.end, performed.describe()
    match end.kind:
        case EndKind.FINISHED:  # its metrics are said once, by the stage
            return Completed(message=replace(end, message="finished").describe())
        case EndKind.PAUSED | EndKind.DETACHED:
            return Completed(name=end.kind.value, message=message)
        case EndKind.CANCELLED:
            return Cancelled(name=end.kind.value, message=message)
        case EndKind.FAILED | EndKind.REFUSED:
            return Failed(name=end.kind.value, message=message)
    return Crashed(name=end.kind.value, message=message)


class ProgressArtifact:
    """The progress bar of one task run in the Prefect UI, rate-limited."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._artifact_id: Any = None
        self._next_update = 0.0
        self._progress: dict[str, Any] = {}

    def __call__(self, progress: dict[str, Any]) -> None:
        """Show what `progress.json` says."""
        self._progress = progress
        if time.monotonic() >= self._next_update:
            self._next_update = time.monotonic() + PROGRESS_INTERVAL_S
            self.show(fraction_done(progress), describe_progress(progress))

    def close(self, performed: AttemptResult) -> None:
        """State how the attempt ended, beside how far it came: the UI shows the message of a task run's state nowhere.

        A stage that finished is done, however few epochs it took.
        """
        if performed.end.kind is EndKind.FINISHED:
            self.show(1.0, f"{performed.end.kind.value}: {performed.end.describe()}")
            return
        lasting = {key: value for key, value in self._progress.items() if key not in MOMENTARY}
        reached = f" at {describe_progress(lasting)}" if lasting else ""
        self.show(fraction_done(lasting), f"{performed.end.kind.value}{reached}: {performed.describe()}")

    def show(self, fraction: float, description_text: str) -> None:
        """Show a fraction, and what it means."""
        percent = round(100.0 * fraction, 1)
        with api_may_fail("progress"):
            if self._artifact_id is None:
                self._artifact_id = create_progress_artifact(percent, key=self.key, description=description_text)
            else:
                update_progress_artifact(self._artifact_id, percent, description=description_text)


@contextlib.contextmanager
def api_may_fail(what: str) -> Iterator[None]:
    """Warn where the Prefect API does not take what people would see there; everything is in files, too."""
    try:
        yield
    except API_ERRORS as error:
        get_run_logger().warning("no %s in Prefect: %s", what, error)


def publish_attempts(output: OutputDirectory, started: float, scope: str) -> None:
    """Put all attempts since `started` (seconds since the epoch) into the Prefect UI: a table, and what followed each.

    It is markdown, whose sentences wrap: of a wide table the page shows the first columns.
    """
    rows = filled_columns(attempt_rows(output, started))
    if not rows:
        return
    header = [name for name in rows[0] if name not in SENTENCES]
    texts = [[row[name] for name in header] for row in rows]
    table = Table.of(header, texts, "Every attempt of this run, and what followed it.", text_columns=(0, 2))
    told = [
        f"* {escaped(row['stage'])}, attempt {row['attempt']}: {escaped(row['what followed'])}"
        for row in rows
        if row["end"] != EndKind.FINISHED
    ]
    text = "\n\n".join(filter(None, [as_tables(table), "\n".join(told)]))
    with api_may_fail("table of attempts"):
        create_markdown_artifact(text + "\n", key=artifact_key("attempts", scope), description=table.caption)


class StageLog:
    """Log which stages start and end in the flow run that trains as a part: who watches that one sees no other's."""

    def __init__(self) -> None:
        self._log, self._told = OUTER_LOG.get(), dict[str, StageState]()

    def __call__(self, stages: Sequence[StageRecord]) -> None:
        """Log what has changed since the last call."""
        if self._log is None:
            return
        done = sum(stage.state in DONE_STATES for stage in stages)
        for stage in stages:
            if stage.state != self._told.get(stage.name, StageState.PLANNED):
                self._told[stage.name] = stage.state
                why = f": {stage.reason}" if stage.reason else ""
                self._log.info("%s is %s, %d of %d stages are done%s", stage.name, stage.state, done, len(stages), why)


class TotalProgress:
    """The progress bar of a whole run in the Prefect UI: stages that are done, run, and are to come, and how long."""

    def __init__(self, scope: str, left: Callable[[], str] = lambda: "") -> None:
        """Show it under keys that begin with `scope`; `left` says what the run still takes."""
        self._bar = ProgressArtifact(artifact_key("progress", scope))
        self._shown, self._left = "", left
        self._next_update = self._next_left = 0.0

    def __call__(self, stages: Sequence[StageRecord]) -> None:
        """Show how far a run is, where that has changed, and from time to time what is left."""
        done = sum(stage.state in DONE_STATES for stage in stages)
        parts = [f"{done} of {len(stages)} stages done"]
        for state, title in IN_TOTAL.items():
            names = [stage.name for stage in stages if stage.state == state]
            if names:
                parts.append(f"{title}: {', '.join(names)}")
        text = "; ".join(parts)
        if text != self._shown or time.monotonic() >= self._next_update:
            is_known = text == self._shown
            began = time.monotonic()
            left = self._left() if began >= self._next_left else ""  # of thousands of stages: seconds
            if left:
                self._next_left = began + LEFT_PAUSE * (time.monotonic() - began)
            self._shown, self._next_update = text, time.monotonic() + PROGRESS_INTERVAL_S
            if left or not is_known:
                self._bar.show(done / max(1, len(stages)), "; ".join(filter(None, (text, left))))
