from pathlib import Path

import numpy as np
import pytest

from kdgat.graphs import GraphColumns, GraphStore, write_store
from kdgat.trees.graphs.columns import HAS_RADIUS, NODE_FEATURES, RADIUS, SCHEMA, scaled, tree_columns, tree_of
from kdgat.trees.structure.tree import Tree, count_paths
from tests.trees.examples import batch_of, random_tree

TREE = Tree.from_parents([-1, 0, 0], [[0, 0, 0], [2, 0, 0], [0, 2, 0]])


@pytest.mark.parametrize(("label", "target"), [(None, None), (None, 3.5), (1, None)])
def test_a_tree_is_stored_with_a_class_a_number_or_neither(
    tmp_path: Path, label: int | None, target: float | None
) -> None:
    columns = tree_columns(TREE, 1.0, 0, label, target)
    classes = [] if label is None else ["control", "lps"]
    write_store(
        tmp_path / "a.h5",
        SCHEMA,
        [columns],
        node_features=NODE_FEATURES,
        attributes={"classes": classes, "trees": ["a"]},
        build={},
    )
    stored = GraphStore.open(tmp_path / "a.h5", SCHEMA).columns
    assert stored["label"].tolist() == [-1 if label is None else label]
    assert stored["labelled"].tolist() == [int(label is not None or target is not None)]
    assert stored["target"].tolist() == [target or 0.0]
    assert np.array_equal(tree_of(stored, 0).position, TREE.position)


def test_a_stored_tree_is_that_tree_again_in_units_of_the_scale() -> None:
    trees = [random_tree(0), random_tree(1, 1), random_tree(2, 30, has_radius=False)]
    columns = GraphColumns.concatenate([tree_columns(tree, 2.0, place) for place, tree in enumerate(trees)])
    for place, tree in enumerate(trees):
        found = tree_of(columns, place, "name")
        for key in ("parent", "kind", "depth", "size"):
            assert np.array_equal(getattr(found, key), getattr(tree, key)), key
        assert np.allclose(2.0 * found.position, tree.position - tree.position[0], atol=1e-5)
        assert np.allclose(2.0 * found.length, tree.length, atol=1e-5)
        assert np.allclose(2.0 * found.radius, tree.radius, atol=1e-5)
        counts = count_paths(tree)
        stored = [int(columns[key][place]) for key in ("branches", "ancestors", "general")]
        assert stored == [counts.branches, counts.ancestors, counts.general]


@pytest.mark.parametrize("has_radius", [True, False])
def test_scaling_what_was_stored_is_storing_with_the_scale(has_radius: bool) -> None:
    tree = random_tree(0, has_radius=has_radius)
    one, other = scaled(tree_columns(tree, 1.0, 0), 3.0), tree_columns(tree, 3.0, 0)
    assert np.allclose(one.x, other.x, atol=1e-6)
    assert bool((one.x[:, HAS_RADIUS] == has_radius).all())
    assert has_radius or not one.x[:, RADIUS].any()
    for key in ("pos", "length"):
        assert np.allclose(one[key], other[key], atol=1e-6)


def test_features_of_a_node_say_nothing_of_its_children() -> None:
    """The same nodes with the last leaf taken away: growth must not be among the inputs."""
    tree = random_tree(0)
    pruned = tree_columns(
        type(tree).from_parents(tree.parent[:-1], tree.position[:-1], tree.radius[:-1], tree.kind[:-1]), 1.0, 0
    )
    assert np.array_equal(pruned.x, tree_columns(tree, 1.0, 0).x[:-1])


def test_a_batch_knows_parents_ancestors_and_children_of_each_tree() -> None:
    trees = [random_tree(0, 20), random_tree(1, 1), random_tree(2, 12)]
    batch, first = batch_of(*trees), 0
    assert (batch.num_trees, batch.num_nodes, batch.start.tolist()) == (3, 33, [0, 20, 21, 33])
    for tree in trees:
        nodes = slice(first, first + tree.num_nodes)
        assert batch.parent[nodes].tolist() == [-1 if parent < 0 else first + parent for parent in tree.parent]
        assert batch.num_children[nodes].tolist() == tree.num_children.tolist()
        above, below = np.divmod(np.arange(tree.num_nodes**2), tree.num_nodes)
        found = batch.is_ancestor(first + batch.start.new_tensor(above), first + batch.start.new_tensor(below))
        assert found.tolist() == tree.is_ancestor(above, below).tolist()
        first += tree.num_nodes
