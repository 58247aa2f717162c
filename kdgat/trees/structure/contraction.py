"""Chains of nodes with one child each, drawn together into one edge that remembers their length."""

import numpy as np

from kdgat.trees.structure.tree import Tree


def contract(tree: Tree) -> Tree:
    """Keep the root, the branch points and the leaves; a traced neuron of 10,000 nodes becomes a few hundred.

    Lengths along the tree are summed, so that each edge's tortuosity is its `length` over the straight distance between
    its ends. Nodes that stay keep position, radius and kind.

    >>> tree = contract(Tree.from_parents([-1, 0, 1, 2], [[0, 0], [1, 0], [1, 1], [2, 1]]))
    >>> tree.length.tolist(), tree.position[1].tolist()
    ([0.0, 3.0], [2.0, 1.0, 0.0])
    """
    kept = tree.num_children != 1
    kept[0] = True
    nodes = np.flatnonzero(kept)
    # In preorder an only child stands behind its parent: between two kept nodes lies the chain above the second.
    start = np.append(0, nodes[:-1] + 1)
    place = np.cumsum(kept) - 1
    above = tree.parent[start]
    return Tree.from_parents(
        np.where(above >= 0, place[above], -1),
        tree.position[nodes],
        tree.radius[nodes],
        tree.kind[nodes],
        np.add.reduceat(tree.length, start),
        tree.name,
    )
