"""Euler tours: order, depth and subtree sizes of a forest from its parents, without a Python step per node or level.

A tour enters and leaves every node once. Its 2N events form linked lists, one per tree; where each event lies in its
list is found by pointer doubling (list ranking, Wyllie 1979), log2(2N) gathers. Everything else is a difference of
places.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError


@dataclass(frozen=True, eq=False)
class Tour:
    """Hold what a tour says of N nodes: a forest's trees follow each other in the order of their roots.

    Attributes:
        enter: [N] place in preorder; node i is an ancestor of j, or j itself, where enter[i] <= enter[j] < leave[i].
        leave: [N] place behind the last node of the subtree.
        depth: [N] edges to the root.
    """

    enter: NDArray[np.int64]
    leave: NDArray[np.int64]
    depth: NDArray[np.int64]

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the number of nodes of each subtree, its root included, [N]."""
        return self.leave - self.enter


def tour(parent: NDArray[np.int64]) -> Tour:
    """Walk a forest depth first, siblings in the order of their indices.

    Args:
        parent: [N] index of each node's parent, -1 at roots, in any order.

    Raises:
        UserError: naming a node whose parent does not exist, or that is its own ancestor.
    """
    parent = parent.astype(np.int64)
    count = len(parent)
    nodes = np.arange(count)
    bad = (parent < -1) | (parent >= count)
    if bad.any():
        node = int(bad.argmax())
        raise UserError(f"parent of node {node} is {parent[node]}, expected -1 (a root) or 0 to {count - 1}")
    if count == 0:
        return Tour(*(np.zeros(0, np.int64) for _ in range(3)))

    # Events: entering node i is i, leaving it is count + i. Roots are siblings of each other.
    order = np.lexsort((nodes, parent))  # siblings beside each other
    is_last = np.append(parent[order][1:] != parent[order][:-1], True)
    sibling = np.full(count, -1)
    sibling[order[:-1]] = np.where(is_last[:-1], -1, order[1:])
    first = np.full(count, -1)
    firsts = order[np.append(True, is_last[:-1])]
    has_parent = parent[firsts] >= 0
    first[parent[firsts][has_parent]] = firsts[has_parent]
    following = np.empty(2 * count, np.int64)
    following[:count] = np.where(first >= 0, first, count + nodes)
    up = np.where(parent >= 0, count + parent, -1)
    following[count:] = np.where(sibling >= 0, sibling, up)

    remaining = _ranks(following)  # events after each one
    if remaining is None:
        raise UserError(f"node {_on_cycle(parent)} is its own ancestor: parents must lead to a root")
    place = 2 * count - 1 - remaining
    is_enter = np.zeros(2 * count, np.int64)
    is_enter[place[:count]] = 1
    entered = np.cumsum(is_enter)
    enter = entered[place[:count]] - 1
    leave = entered[place[count:]]
    # Of the events before entering a node, each other one that is open still belongs to an ancestor.
    depth = 2 * enter - place[:count]
    return Tour(enter, leave, depth)


def _ranks(following: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return how many elements follow each one in its list; None if one of the lists never ends."""
    end = len(following)  # stands for no element
    pointer = np.append(np.where(following >= 0, following, end), end)
    rank = np.append(np.ones(end, np.int64), 0)
    for _ in range(max(1, int(end).bit_length())):
        rank = rank + rank[pointer]
        pointer = pointer[pointer]
    if (pointer != end).any():
        return None
    return rank[:-1] - 1


def _on_cycle(parent: NDArray[np.int64]) -> int:
    """Return a node that no root reaches."""
    pointer = np.append(parent, -1)
    for _ in range(len(parent).bit_length()):
        pointer = pointer[pointer]
    return int((pointer[:-1] >= 0).argmax())
