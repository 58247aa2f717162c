"""What a stage sees of the machine inside a container image: what it reads and writes, under the same names, no more.

Symbolic links are the difficulty: inside, one that leads out of what is bound leads nowhere. Each one on the way to a
file is followed, and what it leads to is bound, too, under the name that the link says.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kdgat.container.layout import PREFIX
from kdgat.stage.directory import RunDirectory
from kdgat.stage.spec import StageSpec

MOST_LINKS: Final = 40  # on the way to one file, as the kernel's limit
MOST_FILES: Final = 32  # that are bound one by one; of more their folders are, those above as long as there are as many
# Bound over an image they would hide what its Python needs, which itself lies below PREFIX.
_OF_THE_IMAGE: Final = frozenset(
    Path(name)
    for name in (
        *("/", "/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/sbin", "/sys", "/usr"),
        *("/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/sbin"),
        *(PREFIX, *map(str, Path(PREFIX).parents), *(f"{PREFIX}/{name}" for name in ("bin", "lib", "lib64"))),
    )
)
_SEPARATORS: Final = re.compile(r"[:,\n]")


class BindError(ValueError):
    """A path cannot be bound into a container; the text names it and the fix."""


@dataclass(frozen=True)
class Bind:
    """One file or folder of the machine with its name inside the container."""

    source: Path
    target: Path
    is_writable: bool = False

    def describe(self) -> str:
        """Return the word that `apptainer exec --bind` takes.

        Raises:
            BindError: if the word would be taken for several.
        """
        for path in (self.source, self.target):
            if _SEPARATORS.search(str(path)):
                raise BindError(
                    f"{str(path)!r} cannot be bound into a container image: Apptainer takes ':' and ',' in a path for "
                    "the end of it; rename it, or give a symbolic link without them instead (ln -s)"
                )
        listed = str(self.source) if self.source == self.target else f"{self.source}:{self.target}"
        if self.is_writable:
            return listed
        return f"{listed}:ro" if ":" in listed else f"{listed}:{listed}:ro"


def stage_binds(directory: RunDirectory, spec: StageSpec, also: Iterable[Path] = ()) -> list[Bind]:
    """List what the stage of a run directory needs: the directory to write, its inputs and `also` to read.

    Args:
        directory: the run directory, the only one that the stage writes into.
        spec: what the stage does.
        also: further files and folders that whoever runs it reads.

    Raises:
        BindError: if something cannot be bound.
    """
    inputs = [_plain(source.resolve(directory.path)) for source in spec.inputs.values()]
    reads = [_plain(Path(path)) for path in spec.reads] + [_plain(path) for path in also]
    view = _View()
    # Upper folders first: what lies in them needs no bind of its own.
    for folder in sorted({*(path.parent for path in inputs), *reads}, key=lambda path: len(path.parts)):
        view.show(folder)
    for path in inputs:
        view.show(path)
    for path in reads:
        for link in _links_below(path, set()):
            view.show(link)
    view.show(_plain(directory.path), is_writable=True)
    return view.binds()


class _View:
    """What is visible inside."""

    def __init__(self) -> None:
        self._found: dict[Path, Bind] = {}

    def show(self, path: Path, *, is_writable: bool = False) -> None:
        """Make a path visible under its own name, whatever links lie on the way to it."""
        source = path
        for _ in range(MOST_LINKS):
            root = self._root_of(path)
            if root is None:
                if not source.exists():  # nobody can read it here either; the stage says so in its own words
                    return
                self._add(Bind(source, path, is_writable))
                return
            link = _first_link(root, path)
            if link is None:
                if is_writable and not root.is_writable:
                    self._add(Bind(source, path, is_writable=True))
                return
            place = root.source / link.relative_to(root.target)
            leads_to, folder = place.readlink(), place.parent.resolve()
            rest = path.relative_to(link)
            aim = _plain(link.parent / leads_to)
            source = folder / leads_to
            if rest.parts and self._root_of(aim) is None and source.exists():
                self._add(Bind(Path(os.path.realpath(source)), aim))
            path, source = aim / rest, Path(os.path.realpath(source)) / rest
        raise BindError(f"{path} cannot be bound into a container image: its symbolic links lead in a circle")

    def binds(self) -> list[Bind]:
        """List what has to be bound: upper folders first, for what is bound later covers what is bound already."""
        for _ in range(MOST_LINKS):
            files = [bind for bind in self._found.values() if bind.source.is_file() and not bind.is_writable]
            folders = _folders_of(files) if len(files) > MOST_FILES else []
            if not folders:
                break
            self._bind_instead(folders)
        return sorted(self._found.values(), key=lambda bind: (len(bind.target.parts), str(bind.target)))

    def _bind_instead(self, folders: Iterable[Bind]) -> None:
        """Bind folders in the place of what lies in them; links there are followed as those in any other folder."""
        targets = {folder.target for folder in folders}
        covered = [
            target
            for target, bind in self._found.items()
            if not bind.is_writable and any(above in targets for above in (target, *target.parents))
        ]
        for target in covered:
            del self._found[target]
        for folder in folders:
            self._add(folder)
        for target in covered:
            self.show(target)

    def _add(self, bind: Bind) -> None:
        if bind.target in _OF_THE_IMAGE:
            raise BindError(
                f"{bind.target} cannot be bound into a container image: it would hide what the image itself has there; "
                "give a folder that holds the data alone"
            )
        self._found[bind.target] = bind

    def _root_of(self, path: Path) -> Bind | None:
        return next((self._found[above] for above in (path, *path.parents) if above in self._found), None)


def _folders_of(files: Iterable[Bind]) -> list[Bind]:
    """Choose folders of the machine that hold these files: the deepest of which there are few enough.

    None of them is one of the image's own; files for which there is no other are left out.
    """
    # A link that leads up out of a linked folder may say a name which the machine itself takes for another file.
    named = {bind.target for bind in files if os.path.realpath(bind.target) == os.path.realpath(bind.source)}
    chains = [
        chain
        for parent in {target.parent for target in named}
        if (chain := [folder for folder in (parent, *parent.parents) if folder not in _OF_THE_IMAGE])
    ]
    chosen: set[Path] = set()
    for depth in range(max((len(chain[0].parts) for chain in chains), default=0), 0, -1):
        # The one at this depth; else the nearest to it that there is.
        chosen = {next((folder for folder in chain if len(folder.parts) <= depth), chain[-1]) for chain in chains}
        if len(chosen) <= MOST_FILES:
            break
    return [Bind(Path(os.path.realpath(folder)), folder) for folder in chosen]


def _first_link(root: Bind, path: Path) -> Path | None:
    """Return the first part of a path, below what is bound, that is a symbolic link."""
    place = root.target
    for part in path.relative_to(root.target).parts:
        place = place / part
        if (root.source / place.relative_to(root.target)).is_symlink():
            return place
    return None


def _links_below(path: Path, seen: set[Path]) -> Iterator[Path]:
    """List the symbolic links in a folder, those in folders that they lead to included."""
    real = Path(os.path.realpath(path))
    if real in seen or not real.is_dir():
        return
    seen.add(real)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            inner = Path(folder) / name
            if inner.is_symlink():
                yield inner
                yield from _links_below(inner, seen)


def _plain(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))
