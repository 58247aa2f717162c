"""Growing one tree by a law, level by level, from a seed."""

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.trees.structure.tours import tour
from kdgat.trees.structure.tree import Tree
from kdgat.trees.synthetic.law import Floats, Law, State, draw_num_children

_MAX_ATTEMPTS = 1000


@dataclass(frozen=True, eq=False)
class SyntheticTree:
    """Hold a tree beside what is true of it.

    Attributes:
        tree: as every other.
        label: number of its class.
        class_name: its class.
        seed: from which it can be grown again.
        law: by which it grew.
        state: of each node, in the tree's order.
    """

    tree: Tree
    label: int
    class_name: str
    seed: int
    law: Law
    state: State


def grow(law: Law, name: str, seed: int, num_nodes: tuple[int, int], kind: int, label: int = 0) -> SyntheticTree:
    """Grow a tree whose number of nodes lies within `num_nodes`, both included; others are drawn again.

    Random numbers depend on the name of the class and on `seed`, at least 0; `kind` is that of all nodes, as in SWC.

    Raises:
        UserError: if the law hardly ever grows trees of such sizes.
    """
    low, high = num_nodes
    if seed < 0:
        raise UserError(f"seed={seed}: give a whole number of at least 0")
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([zlib.crc32(name.encode()), seed])))
    for _ in range(_MAX_ATTEMPTS):
        levels = _levels(law, generator, high)
        if levels is not None and len(levels[0]) >= low:
            parent, position, state = levels
            break
    else:
        raise UserError(
            f"num_nodes={num_nodes}: none of {_MAX_ATTEMPTS} trees of class {name!r} had so many nodes; widen the range"
            " or change the law's branching"
        )
    order = np.argsort(tour(parent).enter)
    tree = Tree.from_parents(
        parent,
        position,
        radius=state["radius"],
        kind=np.full(len(parent), kind),
        name=f"{name}-{seed}",
    )
    return SyntheticTree(tree, label, name, seed, law, {key: array[order] for key, array in state.items()})


def _levels(law: Law, generator: Generator, max_nodes: int) -> tuple[NDArray[np.int64], Floats, State] | None:
    """Return parents, positions and states of a tree, level by level; None if there are more than `max_nodes` nodes."""
    level = law.root(generator)
    parents, positions, states = [np.array([-1])], [np.zeros((1, 3))], [level]
    count, start = 1, 0
    while True:
        number = draw_num_children(law.num_children_probability(level), generator)
        total = int(number.sum())
        if total == 0:
            break
        if count + total > max_nodes:
            return None
        growth = law.growth(level, number, generator)
        parents.append(np.repeat(np.arange(start, count), number))
        level = law.place(level, number, growth, generator)
        edge = level["length"][:, None] * level["direction"]
        positions.append(np.repeat(positions[-1], number, axis=0) + edge)
        states.append(level)
        start, count = count, count + total
    state = {key: np.concatenate([each[key] for each in states]) for key in level}
    return np.concatenate(parents), np.concatenate(positions), state
