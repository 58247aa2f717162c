"""Work in parts: a stage that is killed loses the part that it was at, and others may make parts ahead of it."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from kdgat.base.files import remove_temporary_files, write_json_atomically
from kdgat.stage.directory import RunDirectory, phase_progress
from kdgat.stage.outcome import Paused
from kdgat.training.deadline import Deadline
from kdgat.training.running_time import RunningTime


@dataclass(frozen=True)
class Part:
    """One part: the same bytes whoever makes it, in whatever order, and however often."""

    name: str  # "train/00000032": its place in the run directory's `parts`
    size: int  # in the unit of the progress
    make: Callable[[Path], object]  # writes the file of the part, where it has one; returns its summary, plain data


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

    def path(self, name: str) -> Path:
        """Return where the file of a part is."""
        return self.directory.parts_path / f"{name}.h5"

    def summary_path(self, name: str) -> Path:
        """Return where the summary of a part is."""
        return self.directory.parts_path / f"{name}.json"

    def summary(self, name: str) -> Any:
        """Read the summary of a part that is made."""
        return json.loads(self.summary_path(name).read_text(encoding="utf-8"))

    def missing(self) -> list[str]:
        """Name the parts that are not made yet."""
        return [name for name in self.by_name if not self.summary_path(name).is_file()]

    def make(self, name: str) -> None:
        """Make one part, whether it is there or not."""
        self.summary_path(name).parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.summary_path(name), self.by_name[name].make(self.path(name)))

    def make_missing(self, deadline: Deadline, names: Iterable[str] | None = None) -> Paused | None:
        """Make what is missing, of all parts or of these; Paused if the job ends before that is done.

        Only for the stage itself, which owns the directory: it removes what killed writers left.
        """
        missing = self.missing()
        for folder in {self.summary_path(name).parent for name in missing}:
            remove_temporary_files(folder)
        done = self.total - sum(self.by_name[name].size for name in missing)
        self.report(done, self.total)
        wanted = self.by_name if names is None else set(names)
        with RunningTime().watched() as running_time:
            for name in missing:
                if name not in wanted:
                    continue
                if deadline.reached():
                    reason = f"{deadline.describe()}; {done} of {self.total} {self.unit} are done"
                    return Paused(checkpoint=self.directory.newest_checkpoint(), reason=reason)
                began = running_time()
                self.make(name)
                deadline.observe_step(running_time() - began)
                done += self.by_name[name].size
                self.report(done, self.total)
        return None

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
