"""The least loss of growth that any prediction can have on average, because the law that drew the children is known.

Of a node with children, F(t) is the share of them whose length is at most t (or whose angle to the node's own edge, or
the logarithm of whose radius by the node's own). A predicted G costs the sum over thresholds of |G(t) - F(t)| times a
width. Absolute error is least at the median: with everything known that the children depend on, the best G(t) is the
median of F(t) over the children that the law might have drawn. Pointwise medians never fall from one threshold to the
next: they are a prediction that a network can make. Who sees less than the state (ancestors, with noise, of an unknown
class) cannot do better on average.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from kdgat.trees.synthetic.generation import SyntheticTree
from kdgat.trees.synthetic.law import MAX_CHILDREN, Floats, Growth, Law, State, draw_num_children

_BLOCK: Final = 1 << 16  # drawn sets of children at once


def growth_optimum(
    trees: Sequence[SyntheticTree],
    length_thresholds: ArrayLike,
    angle_thresholds: ArrayLike,
    widths: tuple[ArrayLike, ArrayLike],
    draws: int = 255,
    seed: int = 0,
    radius: tuple[ArrayLike, ArrayLike] | None = None,
) -> dict[str, float]:
    """Return what the prediction from the true state loses on trees, and the entropy of the number of children.

    Losses are means over the nodes that have children and an edge to a parent. With a finite number of draws they are
    slightly above the optimum.

    Args:
        trees: with their states; classes may differ.
        length_thresholds: in the unit of positions.
        angle_thresholds: rad; an angle of 0 goes straight on.
        widths: of the thresholds of lengths, and of angles.
        draws: sets of children per node from which a median is taken.
        seed: of these draws.
        radius: thresholds of the logarithm of a child's radius by its parent's, and their widths; None: not looked at.

    Returns:
        `length`, `angle` and, where it is looked at, `radius`: mean losses; `num_children`: mean entropy of the
        number of children over all nodes, nats; `nodes`: how many nodes the losses are means over; `share`: their
        share among all nodes.
    """
    thresholds = {"length": np.asarray(length_thresholds), "angle": np.asarray(angle_thresholds)}
    width = {"length": np.asarray(widths[0]), "angle": np.asarray(widths[1])}
    if radius is not None:
        thresholds["radius"], width["radius"] = np.asarray(radius[0]), np.asarray(radius[1])
    generator = np.random.default_rng(seed)
    losses = dict.fromkeys(thresholds, 0.0)
    entropy, nodes, scored = 0.0, 0, 0
    for law, group in _by_law(trees).items():
        for tree in group:
            entropy += float(_entropy(law.num_children_probability(tree.state)).sum())
            nodes += tree.tree.num_nodes
        state, number, children = _children(group)
        best = best_shares(law, state, thresholds, draws, generator)
        scored += len(number)
        for name, each in thresholds.items():
            actual = shares_below(measured(children, state, name), number, each)
            losses[name] += float((np.abs(best[name] - actual) @ width[name]).sum())
    return {
        **{name: loss / max(scored, 1) for name, loss in losses.items()},
        "num_children": entropy / max(nodes, 1),
        "nodes": float(scored),
        "share": scored / max(nodes, 1),
    }


def best_shares(
    law: Law, state: State, thresholds: dict[str, Floats], draws: int, generator: Generator
) -> dict[str, Floats]:
    """Return the medians of F(t), given at least one child, [N, thresholds] per channel, over `draws` of children."""
    count = len(state["depth"])
    best = {name: np.empty((count, len(each))) for name, each in thresholds.items()}
    rows = max(1, _BLOCK // draws)
    for start in range(0, count, rows):
        some = slice(start, min(start + rows, count))
        repeated = {name: np.repeat(array[some], draws, axis=0) for name, array in state.items()}
        probability = law.num_children_probability(repeated)
        probability[:, 0] = 0.0
        number = draw_num_children(probability / probability.sum(axis=1, keepdims=True), generator)
        growth = law.growth(repeated, number, generator)
        for name, each in thresholds.items():
            drawn = _sixths_below(measured(growth, repeated, name), number, each).reshape(len(each), -1, draws)
            best[name][some] = np.partition(drawn, draws // 2, axis=2)[:, :, draws // 2].T / 6.0
    return best


def measured(children: Growth, state: State, name: str) -> Floats:
    """Return what a channel compares of the children of [N] nodes, [N, 3]."""
    return np.log(children[name] / state[name][:, None]) if name == "radius" else children[name]


def shares_below(values: Floats, number: NDArray[np.int64], thresholds: Floats) -> Floats:
    """Return F(t), [N, thresholds]: the share of a node's children whose value is at most the threshold.

    Args:
        values: [N, 3] of the children; columns beyond the node's number of children count for nothing.
        number: [N] of children, at least 1.
        thresholds: of any order.
    """
    return _sixths_below(values, number, thresholds).T / 6.0


def _sixths_below(values: Floats, number: NDArray[np.int64], thresholds: Floats) -> NDArray[np.int8]:
    """Return 6 F(t), [thresholds, N]: whole numbers, as a node has one, two or three children."""
    weight = (6 // number).astype(np.int8)
    values = np.where(np.arange(MAX_CHILDREN) < number[:, None], values, np.inf).T
    below = np.zeros((len(thresholds), len(number)), np.int8)
    for row, threshold in zip(below, thresholds, strict=True):
        for column in values:
            row += column <= threshold
        row *= weight
    return below


def _children(trees: Sequence[SyntheticTree]) -> tuple[State, NDArray[np.int64], Growth]:
    """Return of all nodes with children and a parent: state, number of children, and children's values, [N, 3] each."""
    states: list[State] = []
    numbers: list[NDArray[np.int64]] = []
    values: dict[str, list[Floats]] = {name: [] for name in ("length", "angle", "radius")}
    for each in trees:
        number = each.tree.num_children
        parent = each.tree.parent
        rows = np.flatnonzero((number > 0) & (parent >= 0))
        child = np.argsort(parent, kind="stable")  # the root first, then siblings beside each other
        column = np.arange(len(parent)) - np.searchsorted(parent[child], parent[child])
        states.append({name: array[rows] for name, array in each.state.items()})
        numbers.append(number[rows])
        for name in values:
            table = np.ones((len(parent), MAX_CHILDREN))
            table[parent[child[1:]], column[1:]] = each.state[name][child[1:]]
            values[name].append(table[rows])
    return (
        {name: np.concatenate([state[name] for state in states]) for name in states[0]},
        np.concatenate(numbers),
        {name: np.concatenate(tables) for name, tables in values.items()},
    )


def _by_law(trees: Sequence[SyntheticTree]) -> dict[Law, list[SyntheticTree]]:
    groups: dict[Law, list[SyntheticTree]] = defaultdict(list)
    for tree in trees:
        groups[tree.law].append(tree)
    return groups


def _entropy(probability: Floats) -> Floats:
    return -(probability * np.log(np.where(probability > 0, probability, 1.0))).sum(axis=1)
