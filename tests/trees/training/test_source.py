import numpy as np
import pytest

from kdgat.graphs import GraphColumns
from kdgat.training import TrainingConfig
from kdgat.trees.graphs.batch import TreeBatch
from kdgat.trees.graphs.columns import tree_columns
from kdgat.trees.graphs.networks import Networks
from kdgat.trees.models.paths import ancestor_paths, branch_paths, general_paths
from kdgat.trees.sections import PathBudgetConfig
from kdgat.trees.training.source import TreeBatchSource, path_sizes
from tests.trees.examples import TINY, columns_of, random_tree

NUM_TREES, MAX_PATHS = 30, 300


@pytest.fixture(scope="module")
def columns():
    return columns_of([random_tree(seed, 5 + seed) for seed in range(NUM_TREES)])


def make_source(
    columns, max_paths=MAX_PATHS, kind="gtmp", seed=0, shuffle=True, chosen=None, least=1, every=False, **training
):
    return TreeBatchSource(
        columns,
        TINY.model_copy(update={"kind": kind}),
        PathBudgetConfig(max_paths=max_paths),
        TrainingConfig(**{"batch_size": 64, **training}),
        seed,
        shuffle=shuffle,
        chosen=chosen,
        least_batches=least,
        every_tree=every,
    )


def listed(plan):
    return [batch.tolist() for batch in plan]


@pytest.mark.parametrize("kind", ["gtmp", "sgmp"])
def test_paths_are_counted_before_they_are_made(columns, kind) -> None:
    source = make_source(columns, kind=kind)
    for place in range(NUM_TREES):
        tree = TreeBatch.of(source.gather(np.array([place])))
        below = branch_paths(tree) if kind == "gtmp" else general_paths(tree)
        expected = ancestor_paths(tree).nodes.shape[1] + below.nodes.shape[1]
        assert (
            path_sizes(columns, TINY.model_copy(update={"kind": kind}))[place]
            == source.graph_sizes.paths[place]
            == expected
        )


@pytest.mark.parametrize("kind", ["gtmp", "sgmp"])
def test_batches_keep_to_the_budget_and_hold_each_tree_once(columns, kind) -> None:
    source = make_source(columns, kind=kind)
    plan = source.plan(0)
    assert len(plan) > 3
    assert sorted(np.concatenate(plan).tolist()) == list(range(NUM_TREES))
    for batch in plan:
        assert source.graph_sizes.paths[batch].sum() <= MAX_PATHS
    # No more batches than half-full ones would be.
    assert len(plan) <= 2 * source.graph_sizes.paths.sum() / MAX_PATHS + 1


def test_a_tree_above_the_budget_is_a_batch_of_its_own(columns) -> None:
    source = make_source(columns, max_paths=int(path_sizes(columns, TINY).max()) - 1)
    [alone] = [batch for batch in source.plan(0) if source.graph_sizes.paths[batch].max() > source.limit.size]
    assert len(alone) == 1


def test_batches_hold_no_more_trees_than_the_batch_size(columns) -> None:
    assert {len(batch) for batch in make_source(columns, batch_size=4, max_paths=10**6).plan(0)} == {2, 4}


def test_without_a_budget_batches_are_filled_as_training_says(columns) -> None:
    by_graphs = make_source(columns, max_paths=None, batch_by="graphs", batch_size=7)
    assert sorted(map(len, by_graphs.plan(0))) == [2, 7, 7, 7, 7]
    by_nodes = make_source(columns, max_paths=None, batch_by="nodes", max_nodes=60)
    assert max(by_nodes.graph_sizes.nodes[batch].sum() for batch in by_nodes.plan(0)) <= 60
    by_edges = make_source(columns, max_paths=None, batch_by="edges", max_edges=60)
    assert max(by_edges.graph_sizes.edges[batch].sum() for batch in by_edges.plan(0)) <= 60


def test_a_plan_is_a_pure_function_of_seed_and_epoch(columns) -> None:
    first, second = make_source(columns), make_source(columns)
    later = listed(first.plan(3))
    assert listed(second.plan(0)) == listed(first.plan(0))
    assert listed(second.plan(3)) == later != listed(first.plan(0))
    assert listed(make_source(columns, seed=1).plan(0)) != listed(first.plan(0))


def test_without_shuffling_trees_come_in_order(columns) -> None:
    source = make_source(columns, shuffle=False)
    assert np.concatenate(source.plan(0)).tolist() == list(range(NUM_TREES)) == np.concatenate(source.plan(5)).tolist()


@pytest.fixture(scope="module")
def networks():
    """Return 20 networks: every third is a tree, the others have three and five spanning trees."""
    trees = [(place, seed) for place in range(20) for seed in range(1 + 2 * (place % 3))]
    return GraphColumns.concatenate([tree_columns(random_tree(seed, 8 + place), 1.0, place) for place, seed in trees])


def place_of(networks, tree):
    return int(networks["tree"][tree])


def test_an_epoch_has_one_tree_of_each_network_and_the_next_one_another(networks) -> None:
    source = make_source(networks)
    counts = Networks.of(networks).count
    epochs = [sorted(np.concatenate(source.plan(epoch)).tolist()) for epoch in range(5)]
    for trees in epochs:
        assert [place_of(networks, tree) for tree in trees] == list(range(20))
    for place in range(20):
        seen = [trees[place] for trees in epochs]
        assert len(set(seen[: counts[place]])) == counts[place]  # each of them, before one comes again
    firsts = Networks.of(networks).first
    assert 0 < sum(epochs[0] == firsts) < 20
    assert listed(make_source(networks).plan(3)) == listed(source.plan(3))


def test_passes_of_one_epoch_see_different_trees_of_a_network(networks) -> None:
    source = make_source(networks, chosen=np.array([2]), least=5)
    assert len({int(tree) for batch in source.plan(0) for tree in batch}) == 5


def test_the_number_of_passes_and_that_of_trees_do_not_fall_into_step(networks) -> None:
    source = make_source(networks, chosen=np.array([2, 5, 8]), least=5, max_paths=1)  # two passes, five trees
    firsts = [np.concatenate(source.plan(epoch)[:3]) for epoch in range(5)]
    assert len(set(np.concatenate(firsts).tolist())) == 15


def test_validation_sees_the_first_tree_of_each_network(networks) -> None:
    source = make_source(networks, shuffle=False)
    assert np.concatenate(source.plan(7)).tolist() == Networks.of(networks).first.tolist()


def test_measurements_see_every_tree_of_the_networks_chosen(networks) -> None:
    source = make_source(networks, shuffle=False, chosen=np.array([1, 3, 5]), every=True)
    found = np.concatenate(source.plan(0)).tolist()
    assert [place_of(networks, tree) for tree in found] == [1] * 3 + [3] + [5] * 5
    assert found == sorted(set(found))


def test_few_trees_are_passed_over_until_an_epoch_has_its_batches(columns) -> None:
    chosen = np.array([3, 8, 21])
    source = make_source(columns, chosen=chosen, least=7, max_paths=10**6)
    plan = source.plan(0)
    assert len(plan) == 7
    assert all(sorted(batch.tolist()) == chosen.tolist() for batch in plan)
    assert len({tuple(batch.tolist()) for batch in [*plan, *source.plan(1)]}) > 2  # shuffled anew each time
    assert len(make_source(columns, chosen=chosen, least=7, max_paths=1).plan(0)) == 9  # whole passes
    assert make_source(columns, chosen=chosen[:0], least=7).plan(0) == []


def test_a_search_for_paths_is_limited_by_paths_alone(columns) -> None:
    fixed = make_source(columns, max_paths=10**6, batch_size=4)
    searched = make_source(columns, max_paths=10**6, batch_size=4, batch_size_mode="tuner", memory_budget="1G")
    assert max(map(len, fixed.plan(0))) == 4
    assert len(searched.plan(0)) == 1
    assert (searched.limit.unit, searched.limit.size) == ("paths", 10**6)
    assert make_source(columns, max_paths=None, batch_by="nodes").limit.unit == "nodes"


def test_a_source_names_all_trees_that_some_epoch_brings(columns) -> None:
    source = make_source(columns, chosen=np.array([3, 7, 8]), least=4)
    brought = np.concatenate([np.concatenate(source.plan(epoch)) for epoch in range(5)])
    assert np.unique(brought).tolist() == source.graphs().tolist() == [3, 7, 8]
