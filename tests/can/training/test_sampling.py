import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.can.data.pool import PooledStores
from kdgat.can.sections import SamplingConfig
from kdgat.can.training.sampling import MOST_REPEATS, PoolSource, SampledSource, draw
from kdgat.training import TrainingConfig
from tests.canbus.features.planted_graphs import planted_columns

TRAINING = TrainingConfig(batch_size=16)


def make_pool() -> PooledStores:
    parts = [planted_columns(60, seed=0, attack_share=0.2), planted_columns(40, seed=1, attack_share=0.6)]
    return PooledStores(parts, ["train", "injected"])


def source(sampling: SamplingConfig, seed: int = 0) -> SampledSource:
    return SampledSource(make_pool(), sampling, TRAINING, seed)


def flat(plan: object) -> np.ndarray:
    return np.concatenate(plan)  # type: ignore[call-overload]


def test_by_default_an_epoch_is_every_window_once_in_another_order() -> None:
    first, second = flat(source(SamplingConfig()).plan(0)), flat(source(SamplingConfig()).plan(1))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first.tolist() != second.tolist()


def test_an_epoch_has_the_size_and_the_injected_share_asked_for() -> None:
    windows = flat(source(SamplingConfig(graphs_per_epoch=50, injected_fraction=0.3)).plan(4))
    assert len(windows) == 50
    assert (windows >= 60).sum() == 15


def test_balanced_epochs_have_as_many_attacked_windows_as_others() -> None:
    sampled = source(SamplingConfig(graphs_per_epoch=40, injected_fraction=0.5, balanced=True))
    windows = flat(sampled.plan(0))
    labels = sampled.pool.labels[windows]
    assert len(windows) == 40
    assert labels.sum() == 20
    assert labels[windows >= 60].sum() == 10


def test_the_plan_follows_from_seed_and_epoch() -> None:
    sampling = SamplingConfig(graphs_per_epoch=30)
    again = [flat(source(sampling).plan(epoch)).tolist() for epoch in range(3)]
    assert again == [flat(source(sampling).plan(epoch)).tolist() for epoch in range(3)]
    assert again[0] != again[1]
    assert again[0] != flat(source(sampling, seed=1).plan(0)).tolist()


def test_benign_only_sampling_never_shows_an_attack() -> None:
    pool = make_pool()
    sampled = SampledSource(
        pool, SamplingConfig(graphs_per_epoch=50, injected_fraction=0.4), TRAINING, 0, chosen=pool.labels == 0
    )
    assert pool.labels[flat(sampled.plan(0))].sum() == 0


def test_injected_windows_that_are_not_there_are_refused() -> None:
    pool = PooledStores([planted_columns(20)], ["train"])
    with pytest.raises(UserError, match=r"injected_fraction=0\.5"):
        SampledSource(pool, SamplingConfig(injected_fraction=0.5), TRAINING, 0)


def test_a_validation_source_keeps_the_order() -> None:
    plan = PoolSource(make_pool(), np.arange(100), TRAINING, 0, shuffle=False).plan(3)
    assert flat(plan).tolist() == list(range(100))


def test_batches_by_nodes_stay_within_the_budget() -> None:
    pool = make_pool()
    training = TrainingConfig(batch_by="nodes", max_nodes=64)
    for indices in SampledSource(pool, SamplingConfig(), training, 0).plan(0):
        assert pool.node_counts[indices].sum() <= 64


@given(size=st.integers(1, 20), count=st.integers(0, 100), seed=st.integers(0, 1000))
def test_drawing_uses_every_window_equally_often(size: int, count: int, seed: int) -> None:
    drawn = draw(np.arange(size), count, np.random.default_rng(seed))
    times = np.bincount(drawn, minlength=size)
    assert len(drawn) == count
    assert times.max() - times.min() <= 1


@given(sizes=st.lists(st.integers(1, 300), min_size=2, max_size=6), count=st.integers(1, 4000))
def test_no_window_of_a_small_vehicle_is_repeated_more_than_ten_times_and_the_others_have_the_rest(
    sizes: list[int], count: int
) -> None:
    vehicles = np.repeat(np.arange(len(sizes)), sizes)
    drawn = draw(np.arange(len(vehicles)), count, np.random.default_rng(0), vehicles)
    assert len(drawn) == count
    most = max(MOST_REPEATS, -(-count // len(vehicles)))
    assert np.bincount(drawn).max() <= most
    of_each = np.bincount(vehicles[drawn], minlength=len(sizes))
    full = of_each == most * np.array(sizes)
    assert full.all() or np.ptp(of_each[~full]) <= 1
    assert full.all() or of_each[full].max(initial=0) <= of_each[~full].max() + 1


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(graphs_per_epoch=50, injected_fraction=0.4)])
def test_every_vehicle_has_as_many_benign_windows_of_an_epoch(sampling: SamplingConfig) -> None:
    parts = make_pool().parts
    sizes = np.where(np.arange(60) < 6, 0, 1).astype(np.int32)  # a tenth of the windows is of the first vehicle
    parts[0] = parts[0].replace(recording=sizes)
    pool = PooledStores(parts, ["train", "injected"], vehicles=[["kia", "leaf"], []])
    windows = flat(SampledSource(pool, sampling, TRAINING, 0).plan(0))
    benign = windows[(windows < 60) & (pool.labels[windows] == 0)]
    first, second = np.bincount(pool.vehicles[benign], minlength=2)
    assert abs(first - second) <= 1
    assert (windows >= 60).sum() == (40 if sampling.graphs_per_epoch is None else 20)
    attacked = (pool.labels[:60] == 1).mean()
    assert abs((pool.labels[windows[windows < 60]] == 1).mean() - attacked) < 0.05


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), SamplingConfig(injected_fraction=0.0), SamplingConfig(graphs_per_epoch=30)]
)
def test_a_source_names_every_window_that_some_epoch_brings(sampling: SamplingConfig) -> None:
    sampled = source(sampling)
    brought = np.concatenate([flat(sampled.plan(epoch)) for epoch in range(40)])
    assert np.unique(brought).tolist() == sampled.graphs().tolist()


def test_batches_follow_another_limit() -> None:
    sampled = source(SamplingConfig())
    before = sampled.plan(0)
    sampled.limit.size = 25
    assert [len(indices) for indices in sampled.plan(0)] == [25] * 4
    sampled.limit.size = TRAINING.batch_size
    assert [indices.tolist() for indices in sampled.plan(0)] == [indices.tolist() for indices in before]
