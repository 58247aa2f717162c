"""How long trees take to become columns of the graph store, per node: tour, path counts, features.

    OMP_NUM_THREADS=1 python benchmarks/tree_preparation.py

Beside it a plain Python loop, which looks for the children of each node among all nodes as it adds them breadth first:
quadratic, as the published code is, and left out where it would take minutes. Ratios mean more than seconds.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kdgat.trees.graphs.columns import tree_columns
from kdgat.trees.structure.tree import Tree

SIZES = (1_000, 10_000, 100_000)
LARGEST_BASELINE = 10_000
NUM_TREES, TREE_SIZE = 1_000, 1_000


def main() -> None:
    """Measure and print."""
    generator = np.random.default_rng(0)
    print(f"{'nodes':>8}{'seconds':>10}{'us/node':>9}{'loop':>10}{'ratio':>8}")
    per_node = []
    for size in SIZES:
        parent, position = random_parents(size, generator)
        own = best_of(partial(prepare, parent, position))
        per_node.append(own / size)
        loop = best_of(partial(add_tree, parent.tolist()), 1) if size <= LARGEST_BASELINE else None
        beside = "" if loop is None else f"{loop:10.3f}{loop / own:8.0f}"
        print(f"{size:8,}{own:10.4f}{own / size * 1e6:9.2f}{beside}")
    print(f"per node, largest over smallest tree: {per_node[-1] / per_node[0]:.2f}")
    trees = [random_parents(TREE_SIZE, generator) for _ in range(NUM_TREES)]
    began = time.perf_counter()
    for parent, position in trees:
        prepare(parent, position)
    print(f"{NUM_TREES:,} trees of {TREE_SIZE:,} nodes: {time.perf_counter() - began:.2f} s")


def random_parents(count: int, generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return parents in a random order of nodes, as files may have them, and places."""
    nodes = np.arange(1, count)
    parent = np.append(-1, nodes - 1 - (generator.random(count - 1) * np.minimum(nodes, 6)).astype(np.int64))
    place = generator.permutation(count)
    shuffled = np.empty(count, np.int64)
    shuffled[place] = np.where(parent >= 0, place[parent], -1)
    return shuffled, generator.normal(size=(count, 3))


def prepare(parent: NDArray[np.int64], position: NDArray[np.float64]) -> None:
    """Do what a preparation does of one tree."""
    tree_columns(Tree.from_parents(parent, position), 1.0, 0)


def add_tree(parent: list[int]) -> list[tuple[int, int, int]]:
    """Walk breadth first with a scan over all nodes for the children of each; return node, parent, depth."""
    root = parent.index(-1)
    found, queue = [(root, -1, 0)], deque([(root, 0)])
    while queue:
        node, depth = queue.popleft()
        for child, above in enumerate(parent):
            if above == node:
                found.append((child, node, depth + 1))
                queue.append((child, depth + 1))
    return found


def best_of(function: Callable[[], object], repeats: int = 5) -> float:
    """Return the seconds of the fastest of some calls."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
