"""What a stage sees of the machine inside a container image: what it reads and writes, under the same names, no more.

Symbolic links are the difficulty: inside, one that leads out of what is bound leads nowhere. What it leads to is bound,
too, under the name that the link says.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from kdgat.base import UserError
from kdgat.container.layout import PREFIX
from kdgat.stage import RunDirectory, StageSpec

MOST_LINKS: Final = 40  # on the way to one file, as the kernel's limit
MOST_BINDS: Final = 32  # of what is read; where there are more, folders above are bound instead
# Bound over an image they would hide what its Python needs, which itself lies below PREFIX.
_OF_THE_IMAGE: Final = {
    *map(Path, ("/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr")),
    *(Path("/usr", name) for name in ("bin", "lib", "lib64", "local", "sbin")),
    *(Path(PREFIX), *Path(PREFIX).parents, *(Path(PREFIX, name) for name in ("bin", "lib", "lib64"))),
}


@dataclass(frozen=True)
class Bind:
    """One file or folder of the machine with its name inside the container."""

    source: Path
    target: Path
    is_writable: bool = False

    def describe(self) -> str:
        """Return the word that `apptainer exec --bind` takes.

        Raises:
            UserError: if the word would be taken for several.
        """
        for path in (self.source, self.target):
            if re.search(r"[:,\n]", str(path)):
                raise UserError(
                    f"{str(path)!r} cannot be bound into a container image: Apptainer takes ':' and ',' in a path for "
                    "the end of it; rename it, or give a symbolic link without them instead (ln -s)"
                )
        if self.is_writable:
            return str(self.source) if self.source == self.target else f"{self.source}:{self.target}"
        return f"{self.source}:{self.target}:ro"


def stage_binds(directory: RunDirectory, spec: StageSpec, also: Iterable[Path] = ()) -> list[Bind]:
    """List what the stage of a run directory needs: the directory to write, its inputs and `also` to read.

    Args:
        directory: the run directory, the only one that the stage writes into.
        spec: what the stage does.
        also: further files and folders that whoever runs it reads.

    Raises:
        UserError: if something cannot be bound.
    """
    inputs = [_plain(source.resolve(directory.path)) for source in spec.inputs.values()]
    reads = [_plain(path) for path in (*map(Path, spec.reads), *also)]
    view = _View()
    # Upper folders first: what lies in them needs no bind of its own.
    folders = sorted({*(path.parent for path in inputs), *reads}, key=lambda path: len(path.parts))
    for path in chain(folders, inputs, chain.from_iterable(map(_links_below, reads))):
        view.show(path, path)
    view.widen()
    written = view.show(_plain(directory.path), directory.path)
    read = [Bind(source, name) for name, source in view.found.items() if name != written]
    return [*read, Bind(_real(directory.path), written, is_writable=True)]


class _View:
    """What is visible inside: names, and the file or folder of the machine behind each."""

    def __init__(self) -> None:
        self.found: dict[Path, Path] = {}

    def show(self, name: Path, source: Path) -> Path:
        """Make `source` visible under a name, wherever the links there lead, and return the name at their end."""
        for _ in range(MOST_LINKS):
            if not source.exists():  # nobody can read it here either; the stage says so in its own words
                return name
            ways = [*reversed(name.parents), name]
            root = next((above for above in reversed(ways) if above in self.found), None)
            if root is None:
                if name in _OF_THE_IMAGE:
                    raise UserError(
                        f"{name} cannot be bound into a container image: it would hide what the image itself has "
                        "there; give a folder that holds the data alone"
                    )
                self.found[name] = _real(source)
                return name
            places = {way: self.found[root] / way.relative_to(root) for way in ways[len(root.parts) :]}
            link = next((way for way, place in places.items() if place.is_symlink()), None)
            if link is None:
                return name
            leads_to, rest = places[link].readlink(), name.relative_to(link)
            name, source = _plain(link.parent / leads_to) / rest, places[link].parent / leads_to / rest
        raise UserError(f"{name} cannot be bound into a container image: its symbolic links lead in a circle")

    def widen(self) -> None:
        """Leave out what lies in other folders; bind those above, the deepest first, until there are few enough."""
        deepest = max((len(name.parts) for name in self.found), default=0)
        for depth in range(deepest + 1, 1, -1):
            # Not where a link that leads up out of a linked folder says a name that the machine takes for another file.
            climb = [name for name, source in self.found.items() if len(name.parts) == depth and _real(name) == source]
            wider = {name.parent: name.parent for name in climb if name.parent not in _OF_THE_IMAGE}
            before, self.found = {**wider, **self.found}, {}
            for name in sorted(before, key=lambda name: len(name.parts)):
                self.show(name, before[name])
            if len(self.found) <= MOST_BINDS:
                return


def _links_below(path: Path) -> Iterator[Path]:
    """List the symbolic links in a folder, those in folders that they lead to included."""
    seen: set[Path] = set()
    for folder, folders, files in os.walk(path, followlinks=True):
        yield from (inner for name in (*folders, *files) if (inner := Path(folder, name)).is_symlink())
        seen.add(_real(Path(folder)))
        folders[:] = [name for name in folders if _real(Path(folder, name)) not in seen]


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _plain(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))
