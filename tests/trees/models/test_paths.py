from hypothesis import given, settings

from kdgat.trees.models.paths import ancestor_paths, branch_paths, general_paths
from kdgat.trees.structure.tree import Tree, count_paths
from tests.trees.examples import batch_of, small_trees


def listed(paths):
    found = [tuple(column) for column in paths.nodes.T.tolist()]
    assert paths.nodes.shape[1] == len(found)
    assert len(set(found)) == len(found), "a path stands twice"
    return set(found)


def walks(neighbours, steps):
    """All walks of so many steps that come to no node twice."""
    found = [(node,) for node in neighbours]
    for _ in range(steps):
        found = [(*walk, after) for walk in found for after in neighbours[walk[-1]] if after not in walk]
    return set(found)


def children_of(tree):
    children = {node: [] for node in range(tree.num_nodes)}
    for node, parent in enumerate(tree.parent.tolist()):
        if parent >= 0:
            children[parent].append(node)
    return children


def neighbours_of(edges, num_nodes):
    neighbours = {node: set() for node in range(num_nodes)}
    for one, other in edges:
        neighbours[one].add(other)
        neighbours[other].add(one)
    return neighbours


@settings(max_examples=40)
@given(small_trees())
def test_branches_lead_to_each_descendant_three_edges_below_and_to_leaves_before_that(tree: Tree) -> None:
    children = children_of(tree)
    expected = walks(children, 3)
    expected |= {(*walk, -1) for walk in walks(children, 2) if not children[walk[-1]]}
    expected |= {(*walk, -1, -1) for walk in walks(children, 1) if not children[walk[-1]]}
    assert listed(branch_paths(batch_of(tree))) == expected
    assert count_paths(tree).branches == len(expected)


@settings(max_examples=40)
@given(small_trees())
def test_ancestors_are_followed_up_to_three_edges(tree: Tree) -> None:
    expected = set()
    for node in range(1, tree.num_nodes):
        walk = [node]
        while len(walk) < 4:
            walk.append(int(tree.parent[walk[-1]]) if walk[-1] >= 0 else -1)
        expected.add(tuple(walk))
    assert listed(ancestor_paths(batch_of(tree))) == expected
    assert count_paths(tree).ancestors == len(expected)


@settings(max_examples=40)
@given(small_trees())
def test_general_paths_of_a_tree_go_three_edges_in_every_direction(tree: Tree) -> None:
    edges = [(int(parent), node) for node, parent in enumerate(tree.parent) if parent >= 0]
    expected = walks(neighbours_of(edges, tree.num_nodes), 3)
    assert listed(general_paths(batch_of(tree))) == expected
    assert count_paths(tree).general == len(expected)


def test_paths_of_a_batch_stay_within_each_tree() -> None:
    chain = Tree.from_parents([-1, 0, 1, 2], [[0, 0], [1, 0], [2, 0], [3, 0]])
    batch = batch_of(chain, chain)
    assert listed(branch_paths(batch)) == {
        (0, 1, 2, 3), (1, 2, 3, -1), (2, 3, -1, -1), (4, 5, 6, 7), (5, 6, 7, -1), (6, 7, -1, -1)
    }  # fmt: skip
    for paths in (ancestor_paths(batch), general_paths(batch)):
        assert {len({node // 4 for node in path if node >= 0}) for path in listed(paths)} == {1}
