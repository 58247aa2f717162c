"""Morphometrics: what is measured of a tree's shape in neuroanatomy and hydrology, as numbers for a classifier.

Own code: NeuroM measures morphologies that MorphIO has read (a soma, sections of at least two points, radii), so that
neither rivers nor trees whose chains were contracted fit it; navis and skan bring tables and skeletons of their own.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.trees.structure.tree import Tree, edge_lengths

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_NUM_SHOLL_RADII: Final = 10
_RALL: Final = 1.5  # exponent at which a branching point reflects no signal (Rall 1959)


def morphometrics(tree: Tree) -> dict[str, float]:
    """Measure a tree; all numbers are finite, 0 where there is nothing to measure (no branching point, no radius).

    None changes if the tree is rotated, shifted or mirrored. Lengths are in the unit of positions, angles in rad.
    """
    return {
        **_counts(tree),
        **_lengths(tree),
        **_angles(tree),
        **_radii(tree),
        **_asymmetry(tree),
        **_sholl(tree),
        **_strahler(tree),
        **_extents(tree),
    }


@cache
def morphometric_names() -> tuple[str, ...]:
    """Return the names in the order of `morphometrics`."""
    return tuple(morphometrics(Tree.from_parents([-1, 0], [[0, 0], [1, 0]])))


def feature_table(trees: Iterable[Tree]) -> NDArray[np.float64]:
    """Return the morphometrics of trees, [trees, names]; columns as in `morphometric_names`."""
    names = morphometric_names()
    measured = [morphometrics(tree) for tree in trees]
    return np.array([[each[name] for name in names] for each in measured]).reshape(-1, len(names))


def strahler_orders(tree: Tree) -> Indices:
    """Return the Strahler order of each node, [N]: 1 at leaves, one more where the largest of its children are two."""
    order = np.ones(tree.num_nodes, np.int64)
    by_depth = np.argsort(tree.depth, kind="stable")  # siblings stay beside each other
    ends = np.cumsum(np.bincount(tree.depth))
    for start, end in zip(ends[-2::-1], ends[:0:-1], strict=True):
        nodes = by_depth[start:end]
        parent = tree.parent[nodes]
        firsts = np.flatnonzero(np.append(True, parent[1:] != parent[:-1]))
        largest = np.maximum.reduceat(order[nodes], firsts)
        is_largest = order[nodes] == np.repeat(largest, np.diff(np.append(firsts, len(nodes))))
        order[parent[firsts]] = largest + (np.add.reduceat(is_largest, firsts, dtype=np.int64) > 1)
    return order


def leaf_counts(tree: Tree) -> Indices:
    """Return the number of leaves of each node's subtree, [N]; 1 at a leaf."""
    before = np.append(0, np.cumsum(tree.size == 1))
    return before[np.arange(tree.num_nodes) + tree.size] - before[:-1]


def path_lengths(tree: Tree) -> Floats:
    """Return the length along the tree from the root to each node, [N]."""
    behind = np.arange(tree.num_nodes) + tree.size
    left = np.bincount(behind, weights=tree.length, minlength=tree.num_nodes + 1)[:-1]
    return np.cumsum(tree.length) - np.cumsum(left)


def _counts(tree: Tree) -> dict[str, float]:
    number = tree.num_children
    is_leaf = number == 0
    return {
        "nodes": float(tree.num_nodes),
        "leaves": float(is_leaf.sum()),
        "branching points": float((number > 1).sum()),
        "share of chain nodes": float((number == 1).mean()),
        "share of trifurcations": _mean(number[number > 1] > 2),
        "depth": float(tree.depth.max()),
        "mean depth of leaves": float(tree.depth[is_leaf].mean()),
        "SD of depth of leaves": float(tree.depth[is_leaf].std()),
    }


def _lengths(tree: Tree) -> dict[str, float]:
    number = tree.num_children
    edges = tree.length[1:]
    is_last = number[1:] == 0
    mean = _mean(edges)
    straight = edge_lengths(tree.parent, tree.position)[1:]
    leaves = np.flatnonzero(number == 0)
    paths = path_lengths(tree)[leaves]
    to_root = np.linalg.norm(tree.position[leaves] - tree.position[0], axis=1)
    whole = _ratio(paths, to_root)
    below = np.flatnonzero(tree.parent > 0)
    return {
        "total length": float(edges.sum()),
        "mean edge length": mean,
        "CV of edge length": float(edges.std()) / mean if mean > 0 else 0.0,
        "mean length of last edges": _mean(edges[is_last]),
        "mean length of inner edges": _mean(edges[~is_last]),
        "mean log length by parent's": _mean_log(tree.length[below], tree.length[tree.parent[below]]),
        "mean path length": _mean(paths),
        "longest path": float(paths.max()),
        "mean tortuosity of edges": _mean(_ratio(edges, straight)),
        "mean tortuosity of paths": _mean(whole),
        "greatest tortuosity of paths": float(whole.max(initial=0.0)),
    }


def _angles(tree: Tree) -> dict[str, float]:
    edge = tree.position - tree.position[np.maximum(tree.parent, 0)]
    norm = np.linalg.norm(edge, axis=1)
    direction = edge / np.where(norm > 0, norm, 1.0)[:, None]
    known = norm > 0
    number = tree.num_children
    below = np.flatnonzero(tree.parent > 0)
    below = below[known[below] & known[tree.parent[below]] & (number[tree.parent[below]] > 1)]
    local = _angle_between(direction[below], direction[tree.parent[below]])
    # Of two, the angle between them; of more, that of their mean cosine, from |sum of unit vectors|^2.
    siblings, firsts = _siblings(tree)
    count = number[tree.parent[siblings[firsts]]]
    together = np.add.reduceat(direction[siblings], firsts)
    amplitude = np.arccos(np.clip(((together**2).sum(axis=1) - count) / (count * (count - 1.0)), -1.0, 1.0))
    turn = np.zeros(tree.num_nodes)
    turn[below] = local
    least, most = _extremes(turn, siblings, firsts)
    difference = (most - least)[tree.parent[siblings[firsts]] > 0]
    return {
        "mean branching angle": _mean(local),
        "SD of branching angle": _sd(local),
        "mean angle between siblings": _mean(amplitude),
        "SD of angle between siblings": _sd(amplitude),
        "mean difference of siblings' angles": _mean(difference),
    }


def _radii(tree: Tree) -> dict[str, float]:
    number, radius, parent = tree.num_children, tree.radius, tree.parent
    edges = np.arange(1, tree.num_nodes)
    chain = edges[number[parent[1:]] == 1]
    branching = np.flatnonzero(number > 1)
    power: Floats = radius**_RALL
    summed = np.bincount(parent[1:], weights=power[1:], minlength=tree.num_nodes).astype(np.float64)
    small, large = _extremes(radius, *_siblings(tree))
    length = tree.length[edges]
    taper = (radius[parent[edges]] - radius[edges])[length > 0] / length[length > 0]
    return {
        "mean radius": float(radius.mean()),
        "CV of radius": float(radius.std() / radius.mean()) if radius.mean() > 0 else 0.0,
        "mean log radius by parent's": _mean_log(radius[edges], radius[parent[edges]]),
        "mean log radius by parent's in chains": _mean_log(radius[chain], radius[parent[chain]]),
        "mean taper": _mean(taper),
        "mean ratio of Rall": _mean(_ratio(summed[branching], power[branching])),
        "mean ratio of siblings' radii": _mean(_ratio(small, large)),
    }


def _asymmetry(tree: Tree) -> dict[str, float]:
    """Compare the extremes of siblings; the partition asymmetry of two leaves is 0 (van Pelt et al. 1992)."""
    siblings, firsts = _siblings(tree)
    fewest, most = _extremes(leaf_counts(tree), siblings, firsts)
    small, large = _extremes(tree.size, siblings, firsts)
    short, long = _extremes(tree.length, siblings, firsts)
    partition = (most - fewest) / np.maximum(most + fewest - 2.0, 1.0)
    return {
        "mean partition asymmetry": _mean(partition),
        "SD of partition asymmetry": _sd(partition),
        "mean ratio of siblings' sizes": _mean(small / large),
        "mean ratio of siblings' lengths": _mean(_ratio(short, long)),
    }


def _sholl(tree: Tree) -> dict[str, float]:
    """Count the edges that cross spheres around the root, at ten radii up to the farthest node (Sholl 1953)."""
    distance = np.linalg.norm(tree.position - tree.position[0], axis=1)
    share = np.arange(1, _NUM_SHOLL_RADII + 1) / (_NUM_SHOLL_RADII + 1)
    outside = distance[:, None] > share * distance.max()
    crossings = (outside[1:] != outside[tree.parent[1:]]).sum(axis=0)
    return {
        "most Sholl crossings": float(crossings.max()),
        "mean Sholl crossings": float(crossings.mean()),
        "radius of most Sholl crossings": float(share[crossings.argmax()]),
        "Sholl crossings near the end": float(crossings[-1]),
    }


def _strahler(tree: Tree) -> dict[str, float]:
    """Count streams by order; a stream begins where its parent is of another order (Horton 1945, Strahler 1957)."""
    order = strahler_orders(tree)
    begins = np.append(True, order[1:] != order[tree.parent[1:]])
    streams = np.bincount(order[begins])[1:].astype(np.float64)
    length = np.bincount(order, weights=tree.length)[1:] / np.maximum(streams, 1.0)
    steps = len(streams) - 1
    return {
        "Strahler order": float(order[0]),
        "bifurcation ratio": float((streams[0] / streams[-1]) ** (1.0 / steps)) if steps else 0.0,
        "first bifurcation ratio": float(streams[0] / streams[1]) if steps else 0.0,
        "second bifurcation ratio": float(streams[1] / streams[2]) if steps > 1 else 0.0,
        "first ratio of stream lengths": float(length[1] / length[0]) if steps and length[0] > 0 else 0.0,
    }


def _extents(tree: Tree) -> dict[str, float]:
    centred = tree.position - tree.position.mean(axis=0)
    variance = np.maximum(np.linalg.eigvalsh(centred.T @ centred / tree.num_nodes)[::-1], 0.0)
    extent = np.sqrt(variance)
    longest = extent[0] if extent[0] > 0 else 1.0
    return {
        "first principal extent": float(extent[0]),
        "second principal extent by first": float(extent[1] / longest),
        "third principal extent by first": float(extent[2] / longest),
        "distance of the root to the centre": float(np.linalg.norm(tree.position.mean(axis=0) - tree.position[0])),
        "farthest distance": float(np.linalg.norm(tree.position - tree.position[0], axis=1).max()),
    }


def _siblings(tree: Tree) -> tuple[Indices, Indices]:
    """Return the children of all nodes with more than one, beside each other, and the place of each node's first."""
    children = np.argsort(tree.parent[1:], kind="stable") + 1
    siblings = children[tree.num_children[tree.parent[children]] > 1]
    parent = tree.parent[siblings]
    return siblings, np.flatnonzero(np.diff(parent, prepend=-1))


def _extremes(values: NDArray[Any], siblings: Indices, firsts: Indices) -> tuple[Floats, Floats]:
    """Return the least and the greatest value among each node's children."""
    among = values[siblings].astype(np.float64)
    return np.minimum.reduceat(among, firsts), np.maximum.reduceat(among, firsts)


def _angle_between(one: Floats, other: Floats) -> Floats:
    return np.arccos(np.clip((one * other).sum(axis=1), -1.0, 1.0))


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if values.size else 0.0


def _sd(values: Floats) -> float:
    return float(values.std()) if values.size else 0.0


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return the ratios of those that have one."""
    known = below > 0
    return above[known] / below[known]


def _mean_log(above: Floats, below: Floats) -> float:
    known = (above > 0) & (below > 0)
    return _mean(np.log(above[known] / below[known]))
