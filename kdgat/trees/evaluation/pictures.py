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
