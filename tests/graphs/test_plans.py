import itertools
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.graphs.plans import plan_by_graphs, plan_by_size

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=60).map(lambda sizes: np.array(sizes, np.int64))


def as_lists(plan):
    return [batch.tolist() for batch in plan]


@given(
    num_graphs=st.integers(0, 50),
    batch_size=st.integers(1, 20),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 99),
    shuffle=st.booleans(),
)
def test_plan_by_graphs_uses_every_index_once_in_full_batches(num_graphs, batch_size, seed, epoch, shuffle):
    indices = np.arange(num_graphs) * 3
    plan = plan_by_graphs(indices, batch_size, seed, epoch, shuffle)
    assert sorted(np.concatenate([np.array([], int), *plan]).tolist()) == indices.tolist()
    assert all(len(batch) == batch_size for batch in plan[:-1])
    assert all(len(batch) for batch in plan)


@given(
    sizes=SIZES,
    limit=st.integers(1, 30),
    seed=st.integers(0, 99),
    shuffle=st.booleans(),
    max_graphs=st.none() | st.integers(1, 5),
)
def test_budgeted_plan_uses_every_index_once_within_the_budget(sizes, limit, seed, shuffle, max_graphs):
    indices = np.arange(len(sizes))[::2]
    plan = plan_by_size(indices, sizes, limit, "max_nodes", seed, 3, shuffle, max_graphs)
    assert sorted(np.concatenate(plan).tolist()) == indices.tolist()
    for batch in plan:
        assert sizes[batch].sum() <= limit or len(batch) == 1
        assert max_graphs is None or len(batch) <= max_graphs


@given(sizes=SIZES, limit=st.integers(12, 30), seed=st.integers(0, 99))
def test_budgeted_batches_are_filled_until_the_next_graph_does_not_fit(sizes, limit, seed):
    plan = plan_by_size(np.arange(len(sizes)), sizes, limit, "max_edges", seed, 0)
    for batch, following in itertools.pairwise(plan):
        assert sizes[batch].sum() + sizes[following[0]] > limit


def test_plan_is_a_function_of_seed_and_epoch_alone():
    indices, sizes = np.arange(200), np.arange(200) % 7 + 1

    def plans(seed, epoch):
        return [
            as_lists(plan_by_graphs(indices, 16, seed, epoch)),
            as_lists(plan_by_size(indices, sizes, 40, "max_nodes", seed, epoch)),
        ]

    first = plans(5, 2)
    np.random.seed(0)
    assert plans(5, 2) == first
    assert plans(5, 3)[0] != first[0]
    assert plans(6, 2)[1] != first[1]


def test_planning_leaves_its_arguments_and_global_random_state_alone():
    indices = np.arange(10)
    before = np.random.get_state()[1].copy()
    plan_by_graphs(indices, 3, 0, 0)
    plan_by_graphs(indices, 3, 0, 0, shuffle=False)[0][0] = 99
    assert indices.tolist() == list(range(10))
    assert (np.random.get_state()[1] == before).all()


def test_unshuffled_plan_keeps_the_given_order():
    assert as_lists(plan_by_graphs(np.array([4, 1, 3]), 2, 0, 0, shuffle=False)) == [[4, 1], [3]]
    sizes = np.array([0, 5, 0, 5, 5])
    assert as_lists(plan_by_size(np.array([4, 1, 3]), sizes, 10, "max_nodes", 0, 0, shuffle=False)) == [[4, 1], [3]]


def test_graph_above_the_budget_goes_alone_with_one_warning(caplog):
    sizes = np.array([2, 50, 2, 60, 2])
    with caplog.at_level(logging.WARNING):
        plan = plan_by_size(np.arange(5), sizes, 10, "max_nodes", 0, 0, shuffle=False)
    assert as_lists(plan) == [[0], [1], [2], [3], [4]]
    assert [record.getMessage() for record in caplog.records] == [
        "max_nodes: 2 graphs are above 10, the largest is graph 3 with 60; each forms a batch of its own"
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan_by_graphs(np.arange(3), 0, 0, 0), "batch_size: 0 is not"),
        (lambda: plan_by_size(np.arange(3), np.ones(3, int), -1, "max_nodes", 0, 0), "max_nodes: -1 is not"),
        (
            lambda: plan_by_size(np.arange(3), np.ones(3, int), 1, "max_nodes", 0, 0, max_graphs=0),
            "max_graphs: 0 is not",
        ),
        (lambda: plan_by_size(np.arange(3), np.ones(2, int), 1, "max_nodes", 0, 0), "sizes: 2 entries, but graph 2"),
        (lambda: plan_by_graphs(np.arange(3), 1, -1, 0), "seed=-1"),
    ],
)
def test_plan_refuses_arguments_by_name(call, message):
    with pytest.raises(UserError, match=message):
        call()
