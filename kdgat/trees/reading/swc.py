"""SWC: one node a line (id, type, x, y, z, radius, parent), with what files in circulation make of it.

Not MorphIO: 3.5.0 was tried on 6 real neurons and 18 odd files. It reads 20, but none of them as its nodes. Soma points
leave the tree and neurites lose the edge to the soma (Image001-005-01: 4 roots), each section repeats the point at
which it starts (9,297 points from 9,084 rows), and ids, hence the lines that a reason has to name, are gone. The 4 that
it refuses (missing ids, missing parents, a repeated row, two somata) are trees, once that is noted. This reader makes
trees of 22 and refuses two that have no edge.

What is read, and noted: byte order marks, any line end, comments in any encoding, commas as decimal point or separator,
ids with gaps and in any order, parents behind their children, rows that stand twice, parents that do not exist, a node
as its own parent, several roots, radii below zero, a soma of many points, nodes in their parent's place. Types are
kept. What is refused, with its line: a row that is no node, coordinates that are not finite, an id with two meanings, a
cycle.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kdgat.trees.reading import ReadError
from kdgat.trees.reading.result import ReadTree, name_lines
from kdgat.trees.structure.tree import Tree

COLUMNS = ("id", "type", "x", "y", "z", "radius", "parent")
SOMA = 1
MAX_COORDINATE = 1e15
"""Beyond it squares of distances lose all digits: no unit makes it a place in a tree."""
CONTOUR_POINTS = 4
"""From as many soma points on they are an outline around the soma; of three the first is its middle (NeuroMorpho)."""

Components = Literal["largest", "join"]


def read_swc(path: Path | str, components: Components = "largest") -> ReadTree:
    """Read one SWC file.

    Args:
        path: the file; its stem names the tree.
        components: of a file with several roots keep the component with most nodes, or "join" all others to the root
            that stands first.

    Returns:
        The tree, its soma one node, without edges of length zero; notes on each repair, with lines.

    Raises:
        ReadError: naming file and line, if the rows are no tree with at least one edge.
    """
    path = Path(path)
    notes: list[str] = []
    rows = _drop_copies(_parse(path, notes), path, notes)
    parent = _find_parents(rows, notes)
    rows, parent = _choose_component(rows, parent, _find_roots(rows, parent, path), components, notes)
    rows, parent = _merge_soma(rows, parent, notes)
    rows, parent = _merge_zero_edges(rows, parent, notes)
    if len(parent) < 2:
        raise ReadError(path, "no edge is left: a tree needs two nodes in different places", int(rows.line[0]))
    radius = _check_radii(rows, notes)
    tree = Tree.from_parents(parent, rows.position, radius, rows.kind, name=path.stem)
    return ReadTree(tree, tuple(notes))


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of a file, N of them, and the line [N] of each as an editor counts."""

    line: NDArray[np.int64]
    values: NDArray[np.float64]  # [N, 7], COLUMNS

    @property
    def identifier(self) -> NDArray[np.int64]:
        return self.values[:, 0].astype(np.int64)

    @property
    def kind(self) -> NDArray[np.int64]:
        return self.values[:, 1].astype(np.int64)

    @property
    def position(self) -> NDArray[np.float64]:
        return self.values[:, 2:5]

    @property
    def radius(self) -> NDArray[np.float64]:
        return self.values[:, 5]

    @property
    def parent(self) -> NDArray[np.int64]:
        return self.values[:, 6].astype(np.int64)

    def take(self, chosen: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.line[chosen], self.values[chosen])


def _parse(path: Path, notes: list[str]) -> _Rows:
    numbered = _split(_decode(path), path, notes)
    if not numbered:
        raise ReadError(path, "holds no node: expected lines of id, type, x, y, z, radius, parent")
    lines = np.array([number for number, _ in numbered])
    for number, cells in numbered:
        if len(cells) < len(COLUMNS):
            raise ReadError(path, f"{len(cells)} columns, expected {', '.join(COLUMNS)}", number)
    longer = [number for number, cells in numbered if len(cells) > len(COLUMNS)]
    if longer:
        notes.append(f"{name_lines(longer)}: columns behind the seventh are not read")
    try:
        values = np.array([cells[: len(COLUMNS)] for _, cells in numbered], np.float64)
    except ValueError:
        raise _first_bad_cell(path, numbered) from None
    rows = _Rows(lines, values)
    _check_numbers(rows, path)
    return rows


def _decode(path: Path) -> str:
    """Return the text with one character a byte where comments are in an unknown encoding: all else is ASCII."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReadError(path, f"cannot be opened: {error.strerror}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    if b"\0" in data:
        line = len(data[: data.index(b"\0") + 1].splitlines())
        raise ReadError(path, "a byte 0 stands here: this is no text; export the tree as SWC", line)
    return data.removeprefix(codecs.BOM_UTF8).decode("latin-1")


def _split(text: str, path: Path, notes: list[str]) -> list[tuple[int, list[str]]]:
    """Return line number and cells of each line but blank ones, comments, and headings before the first row."""
    # str.splitlines would also break lines at characters that latin-1 makes of bytes in comments.
    lines = re.split(r"\r\n|\r|\n", text)
    bare = [(number, line.partition("#")[0].strip()) for number, line in enumerate(lines, 1)]
    bare = [(number, line) for number, line in bare if line]
    start = next((place for place, (_, line) in enumerate(bare) if line[0] in "+-.0123456789"), len(bare))
    if start:
        notes.append(f"{name_lines([number for number, _ in bare[:start]])}: taken for a heading")
    bare = bare[start:]
    if any("," in line or ";" in line for _, line in bare):
        bare = _replace_commas(bare, notes)
    return [(number, line.split()) for number, line in bare]


def _replace_commas(bare: list[tuple[int, str]], notes: list[str]) -> list[tuple[int, str]]:
    """Make one kind of row of 1,5 2,5 (decimal points), 1.5, 2.5 and 1.5;2.5 (separators)."""
    separated = [(number, re.sub(r";|,(?=\s|$)", " ", line)) for number, line in bare]
    are_points = all(len(line.split()) >= len(COLUMNS) for _, line in separated)
    with_comma = [number for number, line in separated if "," in line]
    if with_comma and are_points:
        notes.append(f"{name_lines(with_comma)}: commas read as decimal points")
    return [(number, line.replace(",", "." if are_points else " ")) for number, line in separated]


def _first_bad_cell(path: Path, numbered: list[tuple[int, list[str]]]) -> ReadError:
    for number, cells in numbered:
        for name, cell in zip(COLUMNS, cells, strict=False):
            try:
                float(cell)
            except ValueError:
                return ReadError(path, f"{name} is {cell[:20]!r}, expected a number", number)
    raise AssertionError("called for rows of numbers")


def _check_numbers(rows: _Rows, path: Path) -> None:
    for column in (0, 1, 6, 2, 3, 4):
        values, name = rows.values[:, column], COLUMNS[column]
        bad, expected = ~(np.abs(values) < MAX_COORDINATE), f"a number below {MAX_COORDINATE:g}"
        if column in (0, 1, 6) and not bad.any():
            bad, expected = values != np.round(values), "a whole number"
        if column == 0 and not bad.any():
            bad, expected = values < 0, "0 or more: below are roots' parents"
        if bad.any():
            row = int(bad.argmax())
            raise ReadError(path, f"{name} is {values[row]:g}, expected {expected}", int(rows.line[row]))


def _drop_copies(rows: _Rows, path: Path, notes: list[str]) -> _Rows:
    """Drop rows that stand twice; two different rows of one id leave open whose the children are."""
    unique, first, inverse = np.unique(rows.identifier, return_index=True, return_inverse=True)
    if len(unique) == len(rows.line):
        return rows
    original = first[inverse]
    other = (rows.values != rows.values[original]).any(axis=1) & ~np.isnan(rows.radius)
    if other.any():
        row = int(other.argmax())
        raise ReadError(
            path,
            f"id {rows.identifier[row]} has other values than on line {rows.line[original[row]]}:"
            " parents that name it are ambiguous; give each node its own id",
            int(rows.line[row]),
        )
    is_first = original == np.arange(len(original))
    notes.append(f"{name_lines(rows.line[~is_first])}: the same row stands before; dropped")
    return rows.take(is_first)


def _find_parents(rows: _Rows, notes: list[str]) -> NDArray[np.int64]:
    """Return [N] rows of the parents, -1 for roots: below zero, the node itself, or an id that no row has."""
    identifier, named = rows.identifier, rows.parent
    order = np.argsort(identifier)
    place = np.minimum(np.searchsorted(identifier, named, sorter=order), len(order) - 1)
    found = order[place]
    exists = identifier[found] == named
    itself = exists & (named == identifier)
    missing = ~exists & (named >= 0)
    if itself.any():
        notes.append(f"{name_lines(rows.line[itself])}: its own parent; taken for a root")
    if missing.any():
        notes.append(f"{name_lines(rows.line[missing])}: no row has the id of the parent; taken for a root")
    return np.where(exists & ~itself, found, -1)


def _find_roots(rows: _Rows, parent: NDArray[np.int64], path: Path) -> NDArray[np.int64]:
    """Return the root [N] above each row, by pointer doubling."""
    root = np.where(parent >= 0, parent, np.arange(len(parent)))
    for _ in range(len(parent).bit_length()):
        root = root[root]
    lost = parent[root] >= 0
    if lost.any():
        # A pointer that never came to a root goes round in the cycle itself.
        row = int(root[lost].min())
        problem = f"node {rows.identifier[row]} is its own ancestor (a cycle of parents); cut it with a parent of -1"
        raise ReadError(path, problem, int(rows.line[row]))
    return root


def _choose_component(
    rows: _Rows, parent: NDArray[np.int64], root: NDArray[np.int64], components: Components, notes: list[str]
) -> tuple[_Rows, NDArray[np.int64]]:
    roots = np.flatnonzero(parent < 0)
    if len(roots) == 1:
        return rows, parent
    where = f"{len(roots)} roots ({name_lines(rows.line[roots])})"
    if components == "join":
        notes.append(f"{where}: joined to the one of line {rows.line[roots[0]]}")
        return rows, np.where((parent < 0) & (root != roots[0]), roots[0], parent)
    sizes = np.bincount(root, minlength=len(root))
    largest = int(sizes.argmax())
    notes.append(f"{where}: kept that of line {rows.line[largest]} with {sizes[largest]} of {len(root)} nodes")
    return _keep(rows, parent, root == largest)


def _keep(rows: _Rows, parent: NDArray[np.int64], kept: NDArray[np.bool_]) -> tuple[_Rows, NDArray[np.int64]]:
    """Take some rows, whose parents are among them."""
    place = np.append(np.cumsum(kept) - 1, -1)
    return rows.take(kept), place[parent[kept]]


def _merge(rows: _Rows, parent: NDArray[np.int64], merged: NDArray[np.bool_]) -> tuple[_Rows, NDArray[np.int64]]:
    """Drop rows whose children become those of the nearest ancestor that is kept."""
    above = np.where(merged, parent, np.arange(len(parent)))
    for _ in range(len(parent).bit_length()):
        above = above[above]
    return _keep(rows, np.where(parent >= 0, above[parent], -1), ~merged)


def _merge_soma(rows: _Rows, parent: NDArray[np.int64], notes: list[str]) -> tuple[_Rows, NDArray[np.int64]]:
    """Make one node of the soma points that hang together with the root: they draw a body and are no branches."""
    root = int(np.flatnonzero(parent < 0)[0])
    is_soma = rows.kind == SOMA
    if not is_soma[root] or is_soma.sum() == 1:
        return rows, parent
    top = np.where(is_soma & (parent >= 0) & is_soma[parent], parent, np.arange(len(parent)))
    for _ in range(len(parent).bit_length()):
        top = top[top]
    body = top == root
    merged = body & (np.arange(len(parent)) != root)
    if not merged.any():
        return rows, parent
    text = f"{name_lines(rows.line[merged])}: more points of the soma, merged into the root"
    if body.sum() >= CONTOUR_POINTS:
        values = rows.values.copy()
        values[root, 2:5] = rows.position[body].mean(axis=0)
        values[root, 5] = np.linalg.norm(rows.position[body] - values[root, 2:5], axis=1).mean()
        rows, text = _Rows(rows.line, values), f"{text}, which moves to their middle"
    notes.append(text)
    return _merge(rows, parent, merged)


def _merge_zero_edges(rows: _Rows, parent: NDArray[np.int64], notes: list[str]) -> tuple[_Rows, NDArray[np.int64]]:
    merged = (parent >= 0) & (rows.position == rows.position[parent]).all(axis=1)
    if not merged.any():
        return rows, parent
    notes.append(f"{name_lines(rows.line[merged])}: in the place of the parent; merged into it")
    return _merge(rows, parent, merged)


def _check_radii(rows: _Rows, notes: list[str]) -> NDArray[np.float64]:
    bad = ~(rows.radius >= 0) | ~np.isfinite(rows.radius)
    if bad.any():
        notes.append(f"{name_lines(rows.line[bad])}: the radius is below 0 or not finite; taken for unknown (0)")
    return np.where(bad, 0.0, rows.radius)
