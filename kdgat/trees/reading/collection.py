"""A folder of files with trees, and what a table of labels says of them; nothing is opened before it is asked for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kdgat.base import UserError
from kdgat.base.text import list_some
from kdgat.stage.faults import is_environment_fault
from kdgat.trees.reading import ReadError
from kdgat.trees.reading.labels import LabelRow, LabelTable, read_labels
from kdgat.trees.reading.result import ReadTree
from kdgat.trees.reading.settings import ReadSettings

SWC_SUFFIXES = (".swc",)
RIVER_SUFFIXES = (".geojson", ".json", ".shp")
MASK_SUFFIXES = (".png", ".tif", ".tiff", ".npy")
SUFFIXES = (*SWC_SUFFIXES, *RIVER_SUFFIXES, *MASK_SUFFIXES)
RECORDING_SUFFIXES = (".parquet", ".log", ".csv", ".txt", ".asc", ".blf", ".trc", ".mf4", ".pcap", ".pcapng", ".gz")
"""Suffixes of files beside which images are no trees: recordings of CAN traffic."""
AMBIGUOUS_SUFFIXES = (".json", *MASK_SUFFIXES)
"""A folder of something else may hold such files, too: pictures and settings beside recordings."""
LABELS_NAME = "labels.csv"
"""The table that is used where none is named."""
MAX_LISTED = 20


@dataclass(frozen=True)
class TreeSource:
    """One file, with what the table of labels says of it.

    Its name is its path below the root, without suffix where that is unique. The trees of one file belong together:
    they are of one split, whether the file has a group or not.
    """

    name: str
    path: Path
    label: str | None = None
    targets: tuple[float, ...] = ()
    split: str | None = None
    group: str | None = None

    @property
    def is_labelled(self) -> bool:
        """Return whether the table of labels has a row for this file."""
        return self.label is not None or bool(self.targets)

    def read(self, settings: ReadSettings | None = None, seed: int = 0) -> list[ReadTree]:
        """Read the trees of this file: one of SWC, one for each component of rivers and masks, the largest first.

        Random spanning trees follow from seed and name alone.

        Raises:
            ReadError: naming the file, the line where there is one, and the fix.
        """
        settings = settings or ReadSettings()
        suffix = self.path.suffix.lower()
        generators = self._generators(settings.spanning_trees, seed) if settings.spanning_trees > 1 else ()
        # Each reader loads libraries of its own.
        if suffix in SWC_SUFFIXES:
            from kdgat.trees.reading.swc import read_swc

            found = [read_swc(self.path, settings.components)]
        elif suffix in RIVER_SUFFIXES:
            from kdgat.trees.reading.rivers import read_rivers

            found = read_rivers(self.path, settings.tolerance, generators)
        elif suffix in MASK_SUFFIXES:
            from kdgat.trees.reading.masks import read_mask

            found = read_mask(self.path, settings.mask_root, generators=generators)
        else:
            raise ReadError(self.path, f"no known suffix; known are {', '.join(SUFFIXES)}")
        # A reader knows the stem alone; what it adds is the number of the tree in the file.
        names = [f"{self.name}{read.tree.name.removeprefix(self.path.stem)}" for read in found]
        return [
            replace(
                read,
                tree=replace(read.tree, name=name),
                others=tuple(replace(tree, name=name) for tree in read.others),
            )
            for read, name in zip(found, names, strict=True)
        ]

    def _generators(self, count: int, seed: int) -> Sequence[np.random.Generator]:
        name = int.from_bytes(hashlib.sha256(self.name.encode()).digest())
        return [np.random.default_rng([seed, 3, name, number]) for number in range(count)]


@dataclass(frozen=True)
class Refusal:
    """One file that is left out, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Collection:
    """Hold the files of a folder in the order of their names.

    Attributes:
        sources: one for each file.
        classes: names of the labels, sorted; () without labels.
        targets: names of the columns of numbers; () without them.
        notes: what a user should know, as files without a label.
    """

    root: Path
    sources: tuple[TreeSource, ...]
    classes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_folder(root: Path | str, labels: Path | str | None = None) -> Collection:
    """Find the files of trees below a folder and join them with a table of labels.

    Args:
        root: searched with all folders below it; what begins with a dot is left out. One file is a folder of one.
        labels: the table (see `labels.py`); None: `labels.csv` in the folder, if it is there.

    Raises:
        UserError: if there is no tree, or table and files do not fit; with row, column, value and fix.
    """
    root = Path(root)
    if not root.exists():
        raise UserError(f"{root}: no such file or folder")
    files = _find_files(root)
    if not files:
        raise UserError(f"{root}: no file of trees; known are {', '.join(SUFFIXES)}")
    base = root if root.is_dir() else root.parent
    stems = Counter(path.with_suffix("") for path in files)
    plain = [path if stems[path.with_suffix("")] > 1 else path.with_suffix("") for path in files]
    sources = [TreeSource(name.relative_to(base).as_posix(), path) for name, path in zip(plain, files, strict=True)]
    table_path = Path(labels) if labels is not None else base / LABELS_NAME
    if labels is None and not table_path.exists():
        return Collection(root, tuple(sources))
    table = read_labels(table_path)
    rows = _match(table, sources, base, whole=root.is_dir())
    joined = tuple(_with_row(source, rows.get(source.path)) for source in sources)
    missing = [source.path.relative_to(base).as_posix() for source in joined if not source.is_labelled]
    named = list_some(missing, MAX_LISTED)
    notes = [f"{table.path}: no row for {named}: unlabelled, for pretraining alone"] if missing else []
    classes = sorted({source.label for source in joined if source.label is not None})
    return Collection(root, joined, tuple(classes), table.targets, tuple(notes))


def read_sources(
    sources: Iterable[TreeSource], settings: ReadSettings | None = None, seed: int = 0
) -> tuple[list[tuple[TreeSource, list[ReadTree]]], list[Refusal]]:
    """Read some files, and return those that could be read and those that could not; call `check_refusals` with all."""
    found, refusals = [], []
    for source in sources:
        try:
            found.append((source, source.read(settings, seed)))
        except ReadError as error:
            if is_environment_fault(error):  # a later look can read it: without it the data would be other data
                raise
            refusals.append(Refusal(source.path, error.problem))
    return found, refusals


def check_refusals(refusals: Sequence[Refusal], num_files: int, settings: ReadSettings | None = None) -> None:
    """Raise UserError, which lists the first files with their reasons, if too many of a folder are unusable."""
    limit = (settings or ReadSettings()).max_bad_fraction
    if len(refusals) > limit * num_files or (refusals and len(refusals) == num_files):
        lines = [f"{refusal.path}: {refusal.reason}" for refusal in refusals[:MAX_LISTED]]
        more = [f"and {len(refusals) - MAX_LISTED} more"] if len(refusals) > MAX_LISTED else []
        heading = f"{len(refusals)} of {num_files} files are unusable, above data.reading.max_bad_fraction={limit:g}"
        raise UserError("\n  ".join([f"{heading}; mend them, take them out, or raise it", *lines, *more]))


def holds_trees(path: Path) -> bool:
    """Return whether a file is one of trees, or a folder has files of which some can be nothing else.

    A folder of masks or .json files alone is one, too, if nothing but a table of labels and texts lies beside them.
    """
    if path.is_file():
        return path.suffix.lower() in SUFFIXES
    others, ambiguous = False, False
    for inner in path.rglob("*"):
        suffix = inner.suffix.lower()
        if suffix in SUFFIXES and suffix not in AMBIGUOUS_SUFFIXES:
            return True
        ambiguous |= suffix in AMBIGUOUS_SUFFIXES
        is_text_beside = inner.name == LABELS_NAME or inner.stem.lower() == "readme"
        others |= suffix in RECORDING_SUFFIXES and not is_text_beside
    return ambiguous and not others


def _find_files(root: Path) -> list[Path]:
    if root.is_file():
        return [root] if root.suffix.lower() in SUFFIXES else []
    found = [path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file()]
    visible = [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]
    return sorted(path for path in visible if path.suffix.lower() != ".json" or _is_geojson(path))


def _is_geojson(path: Path) -> bool:
    """Return whether a .json file begins as GeoJSON does; others are settings or notes."""
    with path.open("rb") as stream:
        start = stream.read(4096)
    return b'"FeatureCollection"' in start or b'"Feature"' in start or b'"coordinates"' in start


def _match(table: LabelTable, sources: Sequence[TreeSource], base: Path, whole: bool) -> dict[Path, LabelRow]:
    """Return the row of each file; `whole` tells that all rows must have one."""
    known: dict[str, list[Path]] = {}
    for source in sources:
        relative = source.path.relative_to(base)
        for name in {relative.as_posix(), source.name, relative.name, relative.stem}:
            known.setdefault(name, []).append(source.path)
    rows: dict[Path, LabelRow] = {}
    for row in table.rows:
        matches = known.get(row.file, [])
        if len(matches) > 1:
            paths = list_some([path.relative_to(base).as_posix() for path in matches], MAX_LISTED)
            raise table.error(row.line, "file", row.file, f"is the name of {paths}: give the path below {base}")
        if not matches:
            if not whole:
                continue
            raise table.unknown_file(row, base, list(known))
        if matches[0] in rows:
            raise table.error(row.line, "file", row.file, f"stands on line {rows[matches[0]].line} already: keep one")
        rows[matches[0]] = row
    return rows


def _with_row(source: TreeSource, row: LabelRow | None) -> TreeSource:
    if row is None:
        return source
    return replace(source, label=row.label, targets=row.targets, split=row.split, group=row.group)
