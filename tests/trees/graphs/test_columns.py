from pathlib import Path

import numpy as np
import pytest

from kdgat.graphs.store import GraphStore, write_store
from kdgat.trees.graphs.columns import NODE_FEATURES, SCHEMA, tree_columns, tree_of
from kdgat.trees.structure.tree import Tree

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
