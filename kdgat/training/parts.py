"""Work in parts: a stage that is killed loses the part that it was at, and others may make parts ahead of it."""

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from kdgat.base import write_json_atomically
from kdgat.base.files import list_folder, remove_temporary_files
from kdgat.base.kept import refuse_newer
from kdgat.stage import Paused, RunDirectory
from kdgat.stage.directory import phase_progress
from kdgat.stage.faults import patiently
from kdgat.stage.signals import stop_signals
from kdgat.training.deadline import Deadline
from kdgat.training.running_time import RunningTime

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """One part: the same bytes whoever makes it, in whatever order, and however often."""

    name: str  # "train/00000032": its place in the run directory's `parts`
    size: int  # in the unit of the progress
    make: Callable[[Path], object]  # writes the file of the part, where it has one; returns its summary, plain data


class _CallingThread(Executor):
    """Make one part after the other in the thread that asks; what fails there is raised at once."""

    def submit(self, make: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        """Return the future of what is done already."""
        future: Future[T] = Future()
        future.set_result(make(*args, **options))
        return future


class Parts:
    """The parts of a stage.

    The summary of a part is written last: where it is, the part is complete.
    """

    def __init__(self, directory: RunDirectory, unit: str, parts: Iterable[Part]) -> None:
        """Hold the parts; `unit` is what their sizes count, in the plural."""
        self.directory, self.unit = directory, unit
        self.by_name = {part.name: part for part in parts}
        self.total = sum(part.size for part in self.by_name.values())
        self.report = phase_progress(directory, unit)
        self._is_abandoned = threading.Event()

    def path(self, name: str) -> Path:
        """Return where the file of a part is."""
        return self.directory.parts_path / f"{name}.h5"

    def summary_path(self, name: str) -> Path:
        """Return where the summary of a part is."""
        return self.directory.parts_path / f"{name}.json"

    def summary(self, name: str) -> Any:
        """Read the summary of a part that is made."""
        content = json.loads(patiently(lambda: self.summary_path(name).read_text(encoding="utf-8")))
        refuse_newer(content, self.summary_path(name))
        return content

    def missing(self) -> list[str]:
        """Name the parts that are not made yet."""
        folders = {self.summary_path(name).parent for name in self.by_name}
        made = {path for folder in folders for path in list_folder(folder)}
        return [name for name in self.by_name if self.summary_path(name) not in made]

    def make(self, name: str) -> None:
        """Make one part, whether it is there or not."""
        self.summary_path(name).parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.summary_path(name), self.by_name[name].make(self.path(name)))

    def make_missing(self, deadline: Deadline, names: Iterable[str] | None = None, threads: int = 1) -> Paused | None:
        """Make what is missing, of all parts or of these; Paused if the job ends before that is done.

        Only for the stage itself, which owns the directory: it removes what killed writers left. With several threads
        so many parts are made at once; what is being made when a signal comes, or another part fails, is abandoned,
        and no thread is left when this returns. Of several parts that fail, the error is that of the first.
        """
        missing = self.missing()
        for folder in {self.summary_path(name).parent for name in missing}:
            remove_temporary_files(folder)
        done = self.total - sum(self.by_name[name].size for name in missing)
        self.report(done, self.total)
        wanted = set(self.by_name if names is None else names)
        waiting = [name for name in missing if name in wanted]
        running: dict[Future[float], str] = {}
        reason = ""
        executor = ThreadPoolExecutor(threads, "part") if threads > 1 else _CallingThread()
        with RunningTime().watched() as running_time, executor:

            def make(name: str) -> float:
                began = running_time()
                self.make(name)
                return running_time() - began

            try:
                while waiting or running:
                    while waiting and len(running) < threads:
                        if deadline.reached():
                            reason, waiting = deadline.describe(), []
                            break
                        name = waiting.pop(0)
                        running[executor.submit(make, name)] = name
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        if future.exception() is not None:
                            raise self._first_error(running)
                        deadline.observe_step(future.result())
                        done += self.by_name[running.pop(future)].size
                        self.report(done, self.total)
            except BaseException:
                self._is_abandoned.set()
                if running:
                    with stop_signals():  # a second signal leaves no thread behind
                        wait(running)
                raise
        if not reason:
            return None
        reason = f"{reason}; {done} of {self.total} {self.unit} are done"
        return Paused(checkpoint=self.directory.newest_checkpoint(), reason=reason)

    def check_abandoned(self) -> None:
        """Leave the part that is being made if the stage ends; called every second or so by parts made at once."""
        if self._is_abandoned.is_set():
            raise CancelledError

    def _first_error(self, running: dict[Future[float], str]) -> BaseException:
        """Wait for what is being made, and return why the first part in their order failed by itself."""
        self._is_abandoned.set()
        errors = [future.exception() for future in running]
        return next(error for error in errors if error is not None and not isinstance(error, CancelledError))

    def remove_files(self, names: Iterable[str]) -> None:
        """Remove the files of parts that have been joined; their summaries stay, and say that they were made."""
        for name in names:
            self.path(name).unlink(missing_ok=True)


def missing_parts(function: str, path: str) -> list[str]:
    """Name the parts that a stage still has to make; what a pool of workers asks one of its own for.

    Args:
        function: "package.module:name" of what returns the `Parts` of a stage, given its spec and run directory.
        path: the run directory.
    """
    return _open_parts(function, path).missing()


def make_part(function: str, path: str, name: str) -> None:
    """Make one part of a stage, in whatever process; arguments as of `missing_parts`."""
    _open_parts(function, path).make(name)


def _open_parts(function: str, path: str) -> Parts:
    return _parts(function, path, RunDirectory(path).read_spec().identity())


@lru_cache(maxsize=1)  # what parts have in common is read once by a process that makes several
def _parts(function: str, path: str, identity: str) -> Parts:
    directory = RunDirectory(path)
    parts: Parts = resolve_name(function)(directory.read_spec(), directory)
    return parts
