import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.trees.structure.tours import tour
from kdgat.trees.structure.tree import Tree, contract


@st.composite
def forests(draw):
    """Parents of a random forest whose nodes come in any order."""
    count = draw(st.integers(1, 40))
    drawn = [draw(st.integers(-1, node - 1)) for node in range(count)]
    order = np.array(draw(st.permutations(range(count))))  # old -> new
    parent = np.empty(count, np.int64)
    for node, above in enumerate(drawn):
        parent[order[node]] = -1 if above < 0 else order[above]
    return parent


def ancestors(parent, node):
    above = []
    while parent[node] >= 0:
        node = int(parent[node])
        above.append(node)
    return above


@given(forests())
def test_a_tour_knows_ancestors_depths_and_sizes(parent):
    walked = tour(parent)
    assert sorted(walked.enter) == list(range(len(parent)))
    for node in range(len(parent)):
        above = ancestors(parent, node)
        assert walked.depth[node] == len(above)
        for other in range(len(parent)):
            inside = walked.enter[other] <= walked.enter[node] < walked.leave[other]
            assert inside == (other == node or other in above)
    assert walked.sizes.sum() == sum(len(ancestors(parent, node)) + 1 for node in range(len(parent)))


@given(forests())
def test_siblings_are_entered_in_their_order(parent):
    walked = tour(parent)
    for above in set(parent.tolist()):
        assert (np.diff(walked.enter[parent == above]) > 0).all()


def test_a_chain_of_a_hundred_thousand_nodes_is_walked_as_a_bush_is():
    chain = np.arange(-1, 99_999)
    assert tour(chain).depth[-1] == 99_999
    bush = np.append(-1, np.zeros(99_999, np.int64))
    assert tour(bush).sizes[0] == 100_000


@pytest.mark.parametrize("parent", [[1, 0], [-1, 2, 3, 1]])
def test_a_cycle_is_refused_with_one_of_its_nodes(parent):
    with pytest.raises(UserError, match=r"node \d is its own ancestor"):
        tour(np.array(parent))


def test_a_parent_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match="parent of node 1 is 7"):
        tour(np.array([-1, 7]))


@given(forests())
def test_a_tree_in_preorder_keeps_places_and_edges(parent):
    parent = np.where(parent < 0, np.flatnonzero(parent < 0)[0], parent)  # one root
    parent[np.flatnonzero(parent == np.arange(len(parent)))[0]] = -1
    position = np.random.default_rng(0).normal(size=(len(parent), 3))
    tree = Tree.from_parents(parent, position, kind=np.arange(len(parent)))
    assert tree.parent[0] == -1
    assert (tree.parent[1:] < np.arange(1, tree.num_nodes)).all()
    assert np.array_equal(tree.position, position[tree.kind])
    assert np.array_equal(tree.kind[tree.parent[1:]], parent[tree.kind[1:]])
    nodes = np.arange(tree.num_nodes)
    for node in nodes:
        assert np.array_equal(tree.is_ancestor(nodes, node), np.isin(nodes, ancestors(tree.parent, node)))


def test_lengths_are_straight_unless_they_are_given():
    tree = Tree.from_parents([-1, 0], [[0, 0, 0], [3, 4, 0]])
    assert tree.length.tolist() == [0.0, 5.0]


@pytest.mark.parametrize(
    ("parent", "position", "text"),
    [([-1, -1], [[0, 0], [1, 1]], "2 of 2 nodes are roots"), ([], np.zeros((0, 3)), "0 of 0 nodes are roots"),
     ([-1], [[np.nan, 0]], "position of node 0 is not finite"), ([-1], [[0]], "positions have shape")],
)  # fmt: skip
def test_what_is_no_tree_is_refused(parent, position, text):
    with pytest.raises(UserError, match=text):
        Tree.from_parents(parent, position)


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
