import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees.examples import batch_of, random_tree, small_trees


@settings(max_examples=40)
@given(st.lists(small_trees(), min_size=1, max_size=3))
def test_what_is_known_of_nodes_is_what_their_parents_say(trees) -> None:
    tree = batch_of(*trees)
    parents = tree.parent.tolist()
    assert [parents.count(node) for node in range(tree.num_nodes)] == tree.num_children.tolist()
    assert [(parent, node) for node, parent in enumerate(parents) if parent >= 0] == [
        tuple(edge) for edge in tree.edges.T.tolist()
    ]


def test_an_ancestor_is_so_many_parents_above() -> None:
    tree = batch_of(random_tree(0, 30), random_tree(1, 1), random_tree(2, 20))
    for node in range(tree.num_nodes):
        above = node
        for steps in range(int(tree.depth[node]) + 1):
            assert tree.ancestor(torch.tensor([node]), torch.tensor([steps])).tolist() == [above]
            above = int(tree.parent[above])
