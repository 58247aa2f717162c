"""Morphometrics of hand-made trees, and what may not change them."""

import math
import time

import numpy as np
import pytest

from kdgat.trees.evaluation.morphometrics import (
    leaf_counts,
    morphometric_names,
    morphometrics,
    path_lengths,
    strahler_orders,
)
from kdgat.trees.structure.tree import Tree
from kdgat.trees.synthetic.dataset import draw

# A stem, then a perfect binary tree of two levels in a plane:  0 - 1 -< 2 -< 3, 4
#                                                                       5 -< 6, 7
PERFECT = [-1, 0, 1, 2, 2, 1, 5, 5]
# Every branching point bears a leaf:  0 -< 1; 2 -< 3; 4 -< 5, 6
CATERPILLAR = [-1, 0, 0, 2, 2, 4, 4]


def placed(parent, seed=0):
    return Tree.from_parents(parent, np.random.default_rng(seed).normal(size=(len(parent), 3)))


@pytest.mark.parametrize(
    ("parent", "orders"),
    [
        (PERFECT, [3, 3, 2, 1, 1, 2, 1, 1]),
        (CATERPILLAR, [2, 1, 2, 1, 2, 1, 1]),
        ([-1, 0, 1, 2], [1, 1, 1, 1]),
        ([-1, 0, 0, 0], [2, 1, 1, 1]),
        ([-1], [1]),
        ([-1, 0, 1, 1, 0, 4, 4, 0], [3, 2, 1, 1, 2, 1, 1, 1]),
    ],
)
def test_strahler_orders_of_known_trees(parent, orders):
    assert strahler_orders(placed(parent)).tolist() == orders


def test_leaves_and_paths_are_those_found_node_by_node():
    for each in draw("neurons", None, 5, seed=0):
        tree = each.tree
        leaves, path = np.zeros(tree.num_nodes, int), np.zeros(tree.num_nodes)
        for node in range(tree.num_nodes):
            up = node
            while up >= 0:
                leaves[up] += tree.size[node] == 1
                path[node] += tree.length[up]
                up = tree.parent[up]
        assert leaf_counts(tree).tolist() == leaves.tolist()
        np.testing.assert_allclose(path_lengths(tree), path, atol=1e-9)


@pytest.mark.parametrize(
    ("parent", "asymmetry"),
    [
        (PERFECT, 0.0),
        (CATERPILLAR, 2 / 3),
        ([-1, 0, 0, 1, 1], 1 / 2),
        ([-1, 0, 1], 0.0),
        ([-1, 0, 0, 1, 1, 2, 2, 3, 3], 1 / 3),
    ],
)
def test_partition_asymmetry_is_van_pelts(parent, asymmetry):
    assert morphometrics(placed(parent))["mean partition asymmetry"] == pytest.approx(asymmetry)


def test_a_fork_of_known_geometry():
    # A stem of 2 along x, then children of 1 and 2 at 30 and 60 degrees on both sides.
    a, b = math.radians(30), math.radians(60)
    position = [[0, 0, 0], [2, 0, 0], [2 + math.cos(a), math.sin(a), 0], [2 + 2 * math.cos(b), -2 * math.sin(b), 0]]
    tree = Tree.from_parents([-1, 0, 1, 1], position, radius=[2.0, 1.0, 0.5, 0.25])
    measured = morphometrics(tree)
    expected = {
        "nodes": 4,
        "leaves": 2,
        "branching points": 1,
        "share of chain nodes": 0.25,
        "depth": 2,
        "total length": 5,
        "mean edge length": 5 / 3,
        "mean length of last edges": 1.5,
        "mean length of inner edges": 2,
        "longest path": 4,
        "mean path length": 3.5,
        "mean tortuosity of edges": 1,
        "greatest tortuosity of paths": 4 / math.dist(position[3], position[0]),
        "mean branching angle": math.radians(45),
        "SD of branching angle": math.radians(15),
        "mean angle between siblings": math.radians(90),
        "mean difference of siblings' angles": math.radians(30),
        "mean ratio of siblings' lengths": 0.5,
        "mean ratio of siblings' radii": 0.5,
        "mean ratio of Rall": 0.5**1.5 + 0.25**1.5,
        "mean log radius by parent's in chains": -math.log(2),
        "mean log length by parent's": -0.5 * math.log(2),
        "Strahler order": 2,
        "bifurcation ratio": 2,
        "first ratio of stream lengths": 2 / 1.5,
        "most Sholl crossings": 2,
        "third principal extent by first": 0,
    }
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, abs=1e-9), name


def test_contracted_lengths_count_as_tortuosity():
    tree = Tree.from_parents([-1, 0, 1], [[0, 0], [1, 0], [2, 0]], length=[0.0, 1.5, 2.5])
    measured = morphometrics(tree)
    assert measured["total length"] == 4.0
    assert measured["mean tortuosity of paths"] == pytest.approx(2.0)
    assert measured["mean tortuosity of edges"] == pytest.approx(2.0)


def test_sholl_counts_edges_that_cross_spheres():
    spokes = Tree.from_parents([-1, 0, 0, 0], [[0, 0, 0], [11, 0, 0], [0, 5.5, 0], [0, 0, -2.5]])
    measured = morphometrics(spokes)  # radii 1 to 10: two spokes beyond 2, one beyond 5
    assert measured["most Sholl crossings"] == 3
    assert measured["mean Sholl crossings"] == pytest.approx((2 * 3 + 3 * 2 + 5 * 1) / 10)
    assert measured["radius of most Sholl crossings"] == pytest.approx(1 / 11)
    assert measured["Sholl crossings near the end"] == 1


@pytest.mark.parametrize("kind", ["neurons", "rivers"])
def test_place_order_and_mirror_do_not_matter(kind):
    generator = np.random.default_rng(0)
    for each in draw(kind, None, 5, seed=0):
        tree = each.tree
        rotation, _ = np.linalg.qr(generator.normal(size=(3, 3)))  # with or without a reflection
        order = generator.permutation(tree.num_nodes)  # new index -> node
        index = np.argsort(order)
        moved = Tree.from_parents(
            np.where(tree.parent[order] >= 0, index[tree.parent[order]], -1),
            (tree.position @ rotation.T + generator.normal(size=3))[order],
            radius=tree.radius[order],
        )
        expected, measured = morphometrics(tree), morphometrics(moved)
        for name in morphometric_names():
            assert measured[name] == pytest.approx(expected[name], rel=1e-6, abs=1e-6), name


@pytest.mark.parametrize("parent", [[-1], [-1, 0], [-1, 0, 1], PERFECT])
def test_numbers_are_finite_and_named_in_order_even_where_all_nodes_coincide(parent):
    for position in (np.zeros((len(parent), 3)), np.arange(3.0 * len(parent)).reshape(-1, 3)):
        measured = morphometrics(Tree.from_parents(parent, position))
        assert tuple(measured) == morphometric_names()
        assert np.isfinite(list(measured.values())).all()


def test_time_is_linear_in_nodes():
    def seconds(count):
        generator = np.random.default_rng(0)
        parent = np.append(-1, (generator.random(count - 1) * np.arange(1, count)).astype(int))  # depth grows as log N
        tree = Tree.from_parents(parent, generator.normal(size=(count, 3)))
        start = time.process_time()
        morphometrics(tree)
        return time.process_time() - start

    seconds(1000)
    assert seconds(200_000) < 60 * max(min(seconds(10_000) for _ in range(3)), 2e-3)
