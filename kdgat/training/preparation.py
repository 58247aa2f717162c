"""The stage `prepare` of a family: stores that are joined from parts, so that a killed preparation loses one part."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kdgat.base import UserError
from kdgat.stage import Finished, Outcome, RunDirectory
from kdgat.stage.faults import patiently
from kdgat.training.deadline import Deadline
from kdgat.training.parts import Part, Parts


class Preparation(ABC):
    """The parts of each store, which may be made in any order and anywhere, and how they are joined."""

    def __init__(self, directory: RunDirectory, unit: str, parts: Mapping[str, Sequence[Part]]) -> None:
        """Hold the parts by store; `unit` is what their sizes count, in the plural."""
        self.directory = directory
        self.names = {store: [part.name for part in some] for store, some in parts.items()}
        self.parts = Parts(directory, unit, [part for some in parts.values() for part in some])

    def run(self) -> Outcome:
        """Make the parts and join them; Paused if the job ends before all parts are made."""
        return self.parts.make_missing(Deadline.from_environment()) or self.join()

    @abstractmethod
    def join(self) -> Finished:
        """Write the stores from the parts that are made, and what is said about them."""

    def summaries(self) -> dict[str, list[Any]]:
        """Read the summaries of all parts, by store."""
        return {store: [self.parts.summary(name) for name in names] for store, names in self.names.items()}

    def join_store(self, store: str, write: Callable[[Path, list[Path]], None]) -> Path:
        """Write `<store>.h5` from the files of its parts unless it is there, and remove these; return its path."""
        path, names = self.directory.path / f"{store}.h5", self.names[store]
        if not path.is_file():
            patiently(lambda: write(path, [self.parts.path(name) for name in names]))
        self.parts.remove_files(names)
        return path


def cut(store: str, count: int, size: int, make: Callable[[range, Path], object]) -> list[Part]:
    """Return the parts of a store of so many items, with `size` of them each; `make` writes those in a range."""
    ranges = [range(start, min(start + size, count)) for start in range(0, count, size)]
    return [Part(f"{store}/{items.start:08d}", len(items), partial(make, items)) for items in ranges]


def check_feature_version(planned: int, computed: int) -> None:
    """Raise UserError where a stage was planned for other features than this kdgat computes."""
    if planned != computed:
        raise UserError(
            f"planned for features of version {planned}, this kdgat computes version {computed}: give the training "
            "command again"
        )
