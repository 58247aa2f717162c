import numpy as np
import pytest

from kdgat.graphs import GraphColumns
from kdgat.trees.graphs.columns import NO_LABEL, tree_columns
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.training.labels import choose_labelled, labelled
from tests.trees.examples import columns_of, random_tree

COUNTS = [1, 3, 2, 1, 4]


def columns_with(labels):
    """Return networks of so many trees with these labels, repeated."""
    places = [place for place in range(len(labels)) for _ in range(COUNTS[place % len(COUNTS)])]
    return GraphColumns.concatenate(
        [
            tree_columns(random_tree(number, 5), 1.0, place, None if labels[place] == NO_LABEL else labels[place])
            for number, place in enumerate(places)
        ]
    )


def test_trees_of_one_network_are_found_and_averaged() -> None:
    networks = Networks.of(columns_with([0] * 5))
    assert (networks.first.tolist(), networks.count.tolist(), len(networks)) == ([0, 1, 4, 6, 7], COUNTS, 5)
    rows = np.random.default_rng(0).normal(size=(11, 3))
    means = networks.mean(rows)
    assert means == pytest.approx(np.stack([part.mean(0) for part in np.split(rows, networks.first[1:])]))
    chosen = np.array([1, 3, 4])
    trees = networks.trees_of(chosen)
    assert trees.tolist() == [1, 2, 3, 6, 7, 8, 9, 10]
    assert np.array_equal(networks.mean(rows[trees], chosen), means[chosen])


def test_without_loops_a_tree_is_a_network_and_its_mean_to_the_bit() -> None:
    networks = Networks.of(columns_of([random_tree(seed, 5) for seed in range(4)]))
    rows = np.random.default_rng(0).normal(size=(4, 3))
    assert np.array_equal(networks.mean(rows), rows)
    assert np.array_equal(networks.trees_of(np.arange(4)), np.arange(4))


def test_labels_are_counted_by_networks() -> None:
    labels = [0, 1] * 10 + [NO_LABEL] * 5
    columns = columns_with(labels)
    assert columns.num_graphs == 55
    assert labelled(columns).tolist() == list(range(20))
    chosen = choose_labelled(columns, 0.3, 0)
    assert [labels[place] for place in chosen].count(0) == [labels[place] for place in chosen].count(1) == 3
    plain = GraphColumns.concatenate([columns.select([int(tree)]) for tree in Networks.of(columns).first])
    assert choose_labelled(plain, 0.3, 0).tolist() == chosen.tolist()  # as of one tree each
