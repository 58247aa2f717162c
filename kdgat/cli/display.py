"""What a person sees while a run goes on: bars on a terminal, one line per event elsewhere, nothing when quiet.

It only watches files (`run.json`, each stage's `progress.json`), so it can neither slow a run down nor break it.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from kdgat.base.text import describe_seconds
from kdgat.run import EVALUATION, OutputDirectory, RunError, StageRecord, StageState
from kdgat.run.directory import DONE_STATES, RunIndex
from kdgat.run.forecast import forecast, fresh_progress
from kdgat.run.progress import describe_progress, fraction_done

Place = OutputDirectory | Callable[[], OutputDirectory | None]

POLL_S: Final = 0.5
WAIT: Final = "starting"
RESULTS: Final = "all stages are done: collecting results"
PLAIN_INTERVAL_S: Final = 30.0  # between two progress lines of a stage where there is no terminal
FORECAST_PAUSE: Final = 20  # times what a forecast took
FORECAST_INTERVAL_S: Final = 2.0
ROOMY: Final = 100  # columns in which long bars leave room for words
ALMOST_DONE: Final = 0.999  # of a bar whose stage is still running
STYLES: Final = {
    StageState.FINISHED: "green",
    StageState.CACHED: "cyan",
    StageState.PAUSED: "yellow",
    StageState.FAILED: "red",
    StageState.BLOCKED: "yellow",
}


@contextmanager
def watched(
    output: Place,
    console: Console,
    *,
    quiet: bool,
    afterwards: str = RESULTS,
) -> Iterator[None]:
    """Show how the run in `output` goes while the context lasts, and after its last stage `afterwards`.

    `output` may be a function that names it once it is known.
    """
    if quiet:
        yield
        return
    watcher: _Watcher = (TerminalWatcher if console.is_terminal else PlainWatcher)(output, console, afterwards)
    stop = threading.Event()
    thread = threading.Thread(target=_poll, args=(watcher, stop), name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        watcher.close()


class _Watcher(ABC):
    """Read the run's files and call `changed` and `progressed`; what is half written or missing is read next time."""

    def __init__(
        self,
        output: Place,
        console: Console,
        afterwards: str = RESULTS,
    ) -> None:
        self._output: Callable[[], OutputDirectory | None] = output if callable(output) else lambda: output
        self.console = console
        self.afterwards = afterwards
        self._started_at = time.time()
        self._forget()
        self.open()

    def _forget(self, path: Path | None = None) -> None:
        """Begin with the run in `path`, of which nothing was shown: a night's has stages of the same names."""
        self._path = path
        self._before: dict[str, StageState] = {}
        self._news: dict[str, str] = {}
        self._resumed: dict[str, str] = {}
        self._is_collecting = False
        self._told_at: dict[str, float] = {}  # seconds since the epoch; progress from before is of a job that is gone
        self._next_forecast = 0.0

    def look(self) -> None:
        """Compare the files with what was shown last."""
        output = self._output()
        index = None if output is None else self._read_index(output)
        if output is None or index is None:
            return
        if output.path != self._path:
            self._forget(output.path)
        for record in index.stages:
            if record.state != self._before.get(record.name, StageState.PLANNED):
                self._before[record.name] = record.state
                # A run that was stopped says at its end what all of these would say; what lacks an input says which.
                if record.state != StageState.BLOCKED or record.reason.startswith("needs "):
                    self.changed(record, index)
            if record.state == StageState.RUNNING and record.reason != self._news.get(record.name, ""):
                self._news[record.name] = record.reason
                self._told_at[record.name] = time.time()
                self.told(record, record.reason)
            if record.state == StageState.RUNNING and record.directory is not None:
                progress = fresh_progress(output.stage_directory(record), self._since(record.name))
                resumed = progress.get("resumed")
                if isinstance(resumed, str) and self._resumed.get(record.name) != resumed:
                    self._resumed[record.name] = resumed
                    self.told(record, f"resumed at {resumed}")
                if progress:
                    self.progressed(record, progress)
        if time.monotonic() >= self._next_forecast and self._before:
            began = time.monotonic()
            done = sum(record.state in DONE_STATES for record in index.stages)
            if len(index.stages) > 1 and (text := forecast(output, index, since=self._since).describe()):
                self.forecast(done, len(index.stages), text)
            took_s = time.monotonic() - began  # of thousands of stages and attempts: seconds
            self._next_forecast = time.monotonic() + max(FORECAST_INTERVAL_S, FORECAST_PAUSE * took_s)
        is_evaluated = any(record.stage == EVALUATION for record in index.stages)
        is_collecting = is_evaluated and all(record.state in DONE_STATES for record in index.stages)
        if is_collecting and not self._is_collecting:
            self.collecting()
        self._is_collecting = is_collecting

    @abstractmethod
    def open(self) -> None:
        """Show that the first stage is waited for."""

    @abstractmethod
    def changed(self, record: StageRecord, index: RunIndex) -> None:
        """Show that a stage is in another state than before."""

    @abstractmethod
    def told(self, record: StageRecord, text: str) -> None:
        """Show what goes on with a running stage beside its progress: its job waits, begins, was lost, or resumed."""

    @abstractmethod
    def progressed(self, record: StageRecord, progress: dict[str, Any]) -> None:
        """Show how far a running stage is."""

    @abstractmethod
    def forecast(self, done: int, total: int, text: str) -> None:
        """Show how many stages are done, and how long the run still takes."""

    @abstractmethod
    def collecting(self) -> None:
        """Show that all stages are done, and that the flow goes on with what they evaluated."""

    def close(self) -> None:
        """Look a last time."""
        self.look()

    def _since(self, name: str) -> float:
        return self._told_at.get(name, self._started_at)

    def _read_index(self, output: OutputDirectory) -> RunIndex | None:
        try:
            if output.index_path.stat().st_mtime < self._started_at - 1.0:
                return None  # left by an earlier run
            return output.read_index()
        except (RunError, OSError):  # not there yet, or no folder that it could be in: the command itself says so
            return None


class PlainWatcher(_Watcher):
    """One line per event, and one per half minute of training."""

    def open(self) -> None:
        """Print it."""
        self._next_line: dict[str, float] = {"": time.monotonic() + PLAIN_INTERVAL_S}  # "": of the run
        self._print(WAIT)

    def changed(self, record: StageRecord, index: RunIndex) -> None:
        """Print the new state."""
        reason = "" if record.state == StageState.RUNNING else _reason(record)
        self._print(f"{record.name}: {record.state}{reason}")
        self._next_line[record.name] = time.monotonic() + PLAIN_INTERVAL_S

    def told(self, record: StageRecord, text: str) -> None:
        """Print it."""
        self._print(f"{record.name}: {text}")

    def progressed(self, record: StageRecord, progress: dict[str, Any]) -> None:
        """Print the progress from time to time."""
        if time.monotonic() >= self._next_line.get(record.name, 0.0):
            self._next_line[record.name] = time.monotonic() + PLAIN_INTERVAL_S
            self._print(f"{record.name}: {fraction_done(progress):.0%} {describe_progress(progress)}")

    def forecast(self, done: int, total: int, text: str) -> None:
        """Print it from time to time."""
        if time.monotonic() >= self._next_line[""]:
            self._next_line[""] = time.monotonic() + PLAIN_INTERVAL_S
            self._print(f"run: {done} of {total} stages done, {text}")

    def collecting(self) -> None:
        """Print it."""
        self._print(self.afterwards)

    def _print(self, text: str) -> None:
        self.console.print(f"{_clock()} {text}", markup=False, highlight=False, soft_wrap=True)


class _WordsColumn(TextColumn):
    """Words on one line that are shortened before anything else.

    In a narrow terminal columns that may be wrapped give way first; so this one may, and its text stays one line.
    """

    def render(self, task: Task) -> Text:
        """Return the words with three dots where there is no room for more."""
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class _Bars(Progress):
    """Bars that leave room at the right for the ^C that a terminal echoes: on a line of its own it would freeze one."""

    width: int | None = None

    def get_renderable(self) -> RenderableType:
        """Return them in this width."""
        return Constrain(super().get_renderable(), self.width)


class TerminalWatcher(_Watcher):
    """A bar per running stage, a line for each that ended."""

    def open(self) -> None:
        """Turn a wheel until the first stage."""
        self._bars: dict[str, TaskID] = {}
        self._progress = _Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24 if self.console.width >= ROOMY else 8),
            TaskProgressColumn(),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            _WordsColumn("[dim]{task.fields[words]}", table_column=Column()),
            console=self.console,
            transient=True,
        )
        self._progress.width = self.console.width - len(" ^C")
        self._progress.start()
        self._waiting: TaskID | None = self._progress.add_task(WAIT, total=None, words="")
        self._run: TaskID | None = None

    def changed(self, record: StageRecord, index: RunIndex) -> None:
        """Open a bar, or close it and leave a line."""
        if self._waiting is not None:
            self._progress.remove_task(self._waiting)
            self._waiting = None
        if record.state == StageState.RUNNING:
            short = next(short for short, one in index.short_names().items() if one.name == record.name)
            self._bars[record.name] = self._progress.add_task(short, total=1.0, words="starting")
            return
        bar = self._bars.pop(record.name, None)
        took = ""
        if bar is not None:
            elapsed_s = self._progress.tasks[self._progress.task_ids.index(bar)].elapsed or 0.0
            took = f" in {describe_seconds(elapsed_s)}"
            self._progress.remove_task(bar)
        # Stages that were stopped, failed or are blocked are not done: while a run stops the count stands still.
        num_done = sum(other.state in DONE_STATES for other in index.stages)
        style = STYLES.get(record.state, "default")
        took = "" if record.state in (StageState.CACHED, StageState.BLOCKED) else took
        self.console.print(
            f"[dim]{_clock()} {num_done:>2}/{len(index.stages)}[/] {record.name} [{style}]{record.state}[/]{took}"
            + escape(_reason(record)),
            highlight=False,
        )

    def told(self, record: StageRecord, text: str) -> None:
        """Leave a line above the bars, and say it beside the bar until the stage reports progress again."""
        self.console.print(f"[dim]{_clock()}[/] {record.name} [dim]{escape(text)}[/]", highlight=False)
        bar = self._bars.get(record.name)
        if bar is not None:
            self._progress.update(bar, words=escape(text))

    def progressed(self, record: StageRecord, progress: dict[str, Any]) -> None:
        """Move the bar."""
        bar = self._bars.get(record.name)
        if bar is not None:
            # A full bar stops its clock for good, and a phase that is done (teacher, difficulty) is not the stage.
            done = min(fraction_done(progress), ALMOST_DONE)
            self._progress.update(bar, completed=done, words=describe_progress(progress))

    def forecast(self, done: int, total: int, text: str) -> None:
        """Keep a bar of the run below those of its stages."""
        if self._run is not None and self._progress.task_ids[-1] != self._run:
            self._progress.remove_task(self._run)
            self._run = None
        if self._run is None:
            self._run = self._progress.add_task("run", total=float(total), words="")
            self._progress.tasks[-1].start_time = self._progress.get_time() - (time.time() - self._started_at)
        self._progress.update(self._run, completed=min(done, total - 1 + ALMOST_DONE), words=escape(text))

    def collecting(self) -> None:
        """Turn a wheel until the flow ends."""
        if self._run is not None:
            self._progress.remove_task(self._run)
            self._run = None
        self._waiting = self._progress.add_task(self.afterwards, total=None, words="")

    def close(self) -> None:
        """Look a last time and take the bars away."""
        super().close()
        self._progress.stop()


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _poll(watcher: _Watcher, stop: threading.Event) -> None:
    while not stop.wait(POLL_S):
        watcher.look()


def _reason(record: StageRecord) -> str:
    return f" ({record.reason})" if record.reason else ""
