"""Collections of synthetic trees: balanced classes, parts that share no tree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Literal

import numpy as np

from kdgat.base import UserError
from kdgat.trees.synthetic.classes import CLASSES, TreeKind, find_kind, generate_tree, law_of
from kdgat.trees.synthetic.generation import SyntheticTree

Part = Literal["train", "validation", "test"]

PART_START: Final[Mapping[Part, int]] = MappingProxyType({"train": 0, "validation": 1 << 30, "test": 2 << 30})
"""Index at which each part of a collection begins: parts of less than 2^30 trees share none."""


def draw(
    kind: TreeKind,
    classes: Sequence[str] | None,
    count: int,
    seed: int,
    start: int = 0,
    *,
    num_nodes: tuple[int, int] | None = None,
) -> Iterator[SyntheticTree]:
    """Grow the trees `start` to `start + count - 1` of the collection that belongs to a seed.

    Tree i is of class i modulo the number of classes and depends on (kind, classes, seed, i) alone: a longer
    collection begins with the shorter one. Labels count the classes as they are given.

    Args:
        kind: "neurons" or "rivers".
        classes: names; None: `CLASSES[kind]`.
        count: of trees.
        seed: of the collection, at least 0.
        start: index of the first tree; `PART_START` holds those of the parts for training, validation and test.
        num_nodes: as in `generate_tree`.

    Raises:
        UserError: naming what is unknown or below 0.
    """
    names = CLASSES[find_kind(kind)] if classes is None else tuple(classes)
    if not names or len(set(names)) < len(names):
        raise UserError(f"classes={list(names)}: give each class once, and at least one")
    if min(count, seed, start) < 0:
        raise UserError(f"count={count}, seed={seed}, start={start}: give whole numbers of at least 0")
    for name in names:
        law_of(kind, name, num_nodes)  # wrong settings are told here, not where the first tree is asked for

    def grown(index: int) -> SyntheticTree:
        label = index % len(names)
        tree = generate_tree(names[label], _seed(seed, index), num_nodes, kind=kind)
        return replace(tree, label=label)

    return map(grown, range(start, start + count))


def _seed(seed: int, index: int) -> int:
    """Return the seed of a collection's tree: collections of different seeds share none."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0]) >> 1
