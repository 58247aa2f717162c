"""Look at files of trees before anything trains on them: size, shape, label, what was repaired, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kdgat.trees.reading import ReadError
from kdgat.trees.reading.collection import Collection, TreeSource
from kdgat.trees.reading.result import ReadTree
from kdgat.trees.structure.tree import Tree, contract


@dataclass(frozen=True, eq=False)
class TreeInspection:
    """What one tree shows; counts are zero, `tree` is None and the reason is the note where it cannot be read.

    Attributes:
        loops: of the network that it spans, cut to make a tree.
        num_branches: edges once chains are contracted.
        depth: of the deepest node, in nodes that are no chain.
        total_length, median_edge: in the file's unit.
        asymmetry: mean over nodes with two children of |l - r| / (l + r - 2), l and r the leaves below either (van
            Pelt); 0 for a balanced tree, 1 for a comb, None where no node has two children with three leaves or more.
    """

    name: str
    path: Path
    label: str | None
    targets: tuple[float, ...]
    notes: tuple[str, ...]
    tree: Tree | None = None
    num_nodes: int = 0
    num_branches: int = 0
    num_leaves: int = 0
    loops: int = 0
    depth: int = 0
    total_length: float = 0.0
    median_edge: float = 0.0
    asymmetry: float | None = None

    @property
    def usable(self) -> bool:
        """Return whether it was read."""
        return self.tree is not None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        values = {key: value for key, value in vars(self).items() if key != "tree"}
        return {**values, "path": str(self.path), "usable": self.usable}


def inspect_collection(
    collection: Collection, on_source: Callable[[TreeSource], None] | None = None
) -> list[TreeInspection]:
    """Inspect every tree of every file, in their order. A file that cannot be read is one line, not an error."""
    inspections: list[TreeInspection] = []
    first: dict[bytes, str] = {}
    for source in collection.sources:
        try:
            for read in source.read():
                content = read.tree.parent.tobytes() + read.tree.position.tobytes()
                original = first.setdefault(content, read.tree.name)
                copies = () if original == read.tree.name else (f"same nodes in the same places as {original}",)
                inspections.append(_inspect(source, read, (*read.notes, *copies)))
        except ReadError as error:
            inspections.append(TreeInspection(source.name, source.path, source.label, source.targets, (error.problem,)))
        if on_source is not None:
            on_source(source)
    return inspections


def _inspect(source: TreeSource, read: ReadTree, notes: tuple[str, ...]) -> TreeInspection:
    tree = read.tree
    short = contract(tree)
    return TreeInspection(
        name=tree.name,
        path=source.path,
        label=source.label,
        targets=source.targets,
        notes=notes,
        tree=tree,
        num_nodes=tree.num_nodes,
        num_branches=short.num_nodes - 1,
        num_leaves=int((tree.num_children == 0).sum()),
        loops=read.loops,
        depth=int(short.depth.max()),
        total_length=float(tree.length.sum()),
        median_edge=float(np.median(tree.length[1:])),
        asymmetry=_asymmetry(tree),
    )


def _asymmetry(tree: Tree) -> float | None:
    leaves_before = np.append(0, np.cumsum(tree.num_children == 0))
    nodes = np.arange(tree.num_nodes)
    leaves = leaves_before[nodes + tree.size] - leaves_before[nodes]
    forks = nodes[(tree.num_children == 2) & (leaves > 2)]
    if not len(forks):
        return None
    left = leaves[forks + 1]  # the first child stands behind its parent
    right = leaves[forks] - left
    return float((np.abs(left - right) / (left + right - 2)).mean())
