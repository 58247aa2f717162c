import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.trees.structure.contraction import contract
from kdgat.trees.structure.tree import Tree


@st.composite
def trees(draw):
    """Draw trees of which about half the nodes stand in chains, with lengths above the straight ones."""
    count = draw(st.integers(1, 40))
    parent = [-1] + [draw(st.sampled_from([node - 1, draw(st.integers(0, node - 1))])) for node in range(1, count)]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    return Tree.from_parents(
        parent, random.normal(size=(count, 3)), random.random(count), np.arange(count), 9 + random.random(count)
    )


def chain_above(tree, node):
    """Return the length from a node up to the next one that is a root or has several children."""
    length, above = float(tree.length[node]), int(tree.parent[node])
    while above > 0 and tree.num_children[above] == 1:
        length, above = length + float(tree.length[above]), int(tree.parent[above])
    return length, above


@given(trees())
def test_root_branch_points_and_leaves_stay_and_the_rest_is_length(tree):
    short = contract(tree)
    kept = np.flatnonzero((tree.num_children != 1) | (np.arange(tree.num_nodes) == 0))
    assert np.array_equal(short.kind, tree.kind[kept])
    assert np.array_equal(short.position, tree.position[kept])
    assert np.array_equal(short.radius, tree.radius[kept])
    assert (short.num_children[1:] != 1).all()
    for node, old in enumerate(kept[1:], 1):
        length, above = chain_above(tree, int(old))
        assert short.length[node] == pytest.approx(length)
        assert kept[short.parent[node]] == above


@given(trees())
def test_a_contracted_tree_is_as_long_and_does_not_change_again(tree):
    short = contract(tree)
    assert short.length.sum() == pytest.approx(tree.length.sum())
    again = contract(short)
    for name in ("parent", "position", "radius", "kind", "length", "depth", "size"):
        assert np.array_equal(getattr(again, name), getattr(short, name)), name


def test_tortuosity_is_length_over_distance():
    tree = contract(Tree.from_parents([-1, 0, 1], [[0, 0], [3, 4], [0, 8]], name="bend"))
    assert (tree.num_nodes, tree.length[1] / np.linalg.norm(tree.position[1]), tree.name) == (2, 10 / 8, "bend")
