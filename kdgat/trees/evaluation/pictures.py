"""Trees in a plane, for pictures: the two axes along which a tree is widest."""

import numpy as np

from kdgat.trees.evaluation.results import DrawnTree
from kdgat.trees.structure.tree import Tree

MOST_NODES = 2000  # of a picture; what a larger tree has beyond is left out from the deepest on


def draw_tree(tree: Tree, label: str | None = None) -> DrawnTree:
    """Project a tree onto its two widest axes."""
    order = np.sort(np.argsort(tree.depth, kind="stable")[:MOST_NODES])  # parents of what is kept are kept
    place = np.full(tree.num_nodes, -1)
    place[order] = np.arange(len(order))
    centred = tree.position[order] - tree.position[order].mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ axes[:2].T
    parent = np.where(tree.parent[order] >= 0, place[tree.parent[order]], -1)
    return DrawnTree(
        name=tree.name,
        label=label,
        parent=parent.tolist(),
        x=np.round(flat[:, 0], 3).tolist(),
        y=np.round(flat[:, 1], 3).tolist(),
        width=np.round(tree.radius[order], 3).tolist(),
    )


def spread(labels: list[str | None], count: int) -> list[int]:
    """Choose places so that each label comes in turn."""
    of_label: dict[str | None, list[int]] = {}
    for place, label in enumerate(labels):
        of_label.setdefault(label, []).append(place)
    order = [place for turn in zip(*(_padded(one, count) for one in of_label.values()), strict=True) for place in turn]
    return [place for place in order if place >= 0][:count]


def _padded(places: list[int], count: int) -> list[int]:
    return (places + [-1] * count)[:count]
