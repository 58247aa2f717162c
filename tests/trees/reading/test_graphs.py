"""Graphs with loops as spanning trees: of shortest paths, or random ones."""

from collections import Counter

import numpy as np
import pytest

from kdgat.trees.reading.graphs import SpaceGraph, grow_trees

SQUARE = [(0, 1), (1, 2), (2, 3), (0, 3)]
# A ladder of three squares, with a tail that is no part of a loop, and a component of its own without one.
LADDER = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (2, 4), (4, 6), (1, 3), (3, 5), (5, 7), (7, 8), (9, 10)]


def graph_of(edges):
    ends = np.array(edges)
    position = np.random.default_rng(0).normal(size=(ends.max() + 1, 3))
    return SpaceGraph(position, ends, np.arange(len(position), dtype=float))


def generators(count, seed=0):
    return [np.random.default_rng([seed, number]) for number in range(count)]


def grown(edges, count=0, seed=0):
    trees, _ = grow_trees(graph_of(edges), lambda nodes: (int(nodes[0]), ()), "net", generators=generators(count, seed))
    return trees


def edges_of(tree):
    """Return the edges between nodes of the graph, which radii number."""
    nodes = tree.radius.astype(int)
    return frozenset(frozenset((int(nodes[node]), int(nodes[tree.parent[node]]))) for node in range(1, len(nodes)))


def test_random_trees_span_the_network_from_the_same_root() -> None:
    whole = {frozenset(edge) for edge in LADDER}
    network, rest = grown(LADDER, 12)
    assert (network.loops, len(network.trees), network.notes) == (3, 12, ("3 loops: 12 random spanning trees",))
    for tree in network.trees:
        assert tree.radius[0] == 0
        assert sorted(tree.radius) == list(range(9))
        assert edges_of(tree) < whole
        straight = np.linalg.norm(tree.position[1:] - tree.position[tree.parent[1:]], axis=1)
        assert tree.length[1:] == pytest.approx(straight)
        assert tree.name == "net-1"
    assert len({edges_of(tree) for tree in network.trees}) > 3
    assert (rest.loops, rest.others, rest.notes) == (0, (), ())


def test_without_generators_paths_are_shortest() -> None:
    network, rest = grown(LADDER)
    assert (network.loops, network.others, network.notes) == (3, (), ("3 loops cut where farthest from the root",))
    assert rest.loops == 0


def test_draws_follow_from_their_generators_alone() -> None:
    few, many, others = (grown(LADDER, count, seed)[0] for count, seed in ((4, 0), (8, 0), (8, 1)))
    assert [edges_of(tree) for tree in few.trees] == [edges_of(tree) for tree in many.trees[:4]]
    assert [edges_of(tree) for tree in many.trees] != [edges_of(tree) for tree in others.trees]


def test_a_loop_is_cut_at_each_of_its_edges_equally_often() -> None:
    (network,) = grown(SQUARE, 800)
    counts = Counter(edges_of(tree) for tree in network.trees)
    assert len(counts) == 4
    assert min(counts.values()) > 150  # 200 each are expected, with a deviation of 12


def test_each_spanning_tree_of_shared_loops_is_drawn() -> None:
    diamond = [*SQUARE, (0, 2)]
    (network,) = grown(diamond, 400)
    counts = Counter(edges_of(tree) for tree in network.trees)
    assert len(counts) == 8  # by Kirchhoff's theorem
    assert min(counts.values()) > 20
