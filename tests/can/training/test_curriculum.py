from itertools import pairwise

import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.can.data.pool import PooledStores
from kdgat.can.sections import CurriculumConfig, SamplingConfig
from kdgat.can.training.curriculum import CurriculumSource
from kdgat.can.training.sampling import SampledSource
from kdgat.training import TrainingConfig
from tests.canbus.features.planted_graphs import planted_columns

TRAINING = TrainingConfig(max_epochs=6, batch_size=16)
CURRICULUM = CurriculumConfig(
    start_ratio=1.0, end_ratio=3.0, start_percentile=50, end_percentile=90, end_hard_fraction=1.0, ramp_fraction=1.0
)


def make_source(curriculum: CurriculumConfig = CURRICULUM, seed: int = 0) -> CurriculumSource:
    pool = PooledStores([planted_columns(300, seed=5, attack_share=0.2)], ["train"])
    scores = np.random.default_rng(1).normal(size=300)
    return CurriculumSource(pool, scores, curriculum, SamplingConfig(), TRAINING, seed)


def test_batches_change_from_epoch_to_epoch() -> None:
    source = make_source()
    epochs = [np.concatenate(source.plan(epoch)) for epoch in range(6)]
    for earlier, later in pairwise(epochs):
        assert set(earlier.tolist()) != set(later.tolist())  # other windows, not merely another order
        assert not np.array_equal(source.gather(earlier[:8]).x, source.gather(later[:8]).x)


def test_the_ratio_of_benign_to_attacked_windows_rises_every_epoch() -> None:
    source = make_source()
    ratios = []
    for epoch in range(6):
        labels = source.pool.labels[np.concatenate(source.plan(epoch))]
        ratios.append((labels == 0).sum() / (labels == 1).sum())
    assert ratios[0] == pytest.approx(1.0, abs=0.05)
    assert ratios[-1] == pytest.approx(3.0, abs=0.05)
    assert all(np.diff(ratios) > 0)


def test_the_benign_windows_become_harder_every_epoch() -> None:
    source = make_source()
    scores = np.zeros(300)
    scores[source.benign] = source.benign_scores
    means, thresholds = [], []
    for epoch in range(6):
        windows = np.concatenate(source.plan(epoch))
        benign = windows[source.pool.labels[windows] == 0]
        curriculum_epoch = source.curriculum_epoch(epoch)
        assert (scores[benign] >= curriculum_epoch.threshold).mean() >= curriculum_epoch.hard_fraction - 0.02
        means.append(scores[benign].mean())
        thresholds.append(curriculum_epoch.threshold)
    assert all(np.diff(thresholds) > 0)
    assert means[-1] > means[0] + 0.5


def test_a_plan_follows_from_seed_and_epoch_so_that_a_resumed_epoch_is_the_same() -> None:
    one, other = make_source(), make_source()
    for epoch in (4, 0, 4, 2):  # in any order, as often as asked
        for ours, theirs in zip(one.plan(epoch), other.plan(epoch), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert one.state_dict() == {}
    assert not np.array_equal(np.concatenate(one.plan(1)), np.concatenate(make_source(seed=1).plan(1)))


def test_what_the_curriculum_moves_is_described_epoch_by_epoch() -> None:
    source = make_source()
    for epoch in (0, 5):
        curriculum_epoch, described = source.curriculum_epoch(epoch), source.describe(epoch)
        assert described["curriculum_ratio"] == curriculum_epoch.ratio
        assert described["curriculum_num_benign"] == curriculum_epoch.num_benign
    assert [source.describe(epoch)["curriculum_percentile"] for epoch in (0, 5)] == [50.0, 90.0]


def test_graphs_per_epoch_fixes_the_size_and_leaves_the_ratio() -> None:
    source = make_source(CURRICULUM.model_copy(update={"graphs_per_epoch": 80}))
    for epoch in (0, 5):
        curriculum_epoch = source.curriculum_epoch(epoch)
        windows = np.concatenate(source.plan(epoch))
        assert len(windows) == 80
        assert (
            source.pool.labels[windows].sum() == curriculum_epoch.num_attack == round(80 / (1 + curriculum_epoch.ratio))
        )


def test_stores_without_attacks_or_with_scores_of_others_are_refused() -> None:
    benign = PooledStores([planted_columns(20, attack_share=0.0)], ["train"])
    with pytest.raises(UserError, match="attacked windows"):
        CurriculumSource(benign, np.zeros(20), CURRICULUM, SamplingConfig(), TRAINING, 0)
    with pytest.raises(UserError, match="score the same stores"):
        CurriculumSource(benign, np.zeros(21), CURRICULUM, SamplingConfig(), TRAINING, 0)


@pytest.mark.parametrize(("start", "end", "largest"), [(1.0, 3.0, 5), (3.0, 1.0, 0), (2.0, 2.0, 0)])
def test_the_largest_epoch_is_the_one_with_most_windows(start: float, end: float, largest: int) -> None:
    source = make_source(CURRICULUM.model_copy(update={"start_ratio": start, "end_ratio": end}))
    sizes = [sum(map(len, source.plan(epoch))) for epoch in range(6)]
    assert source.largest_epoch() == int(np.argmax(sizes)) == largest
    assert set(np.concatenate([np.concatenate(source.plan(epoch)) for epoch in range(6)])) <= set(source.graphs())


def _two_stores(sampling: SamplingConfig, **curriculum: float) -> CurriculumSource:
    recorded, injected = planted_columns(400, seed=5, attack_share=0.1), planted_columns(300, seed=6, attack_share=0.5)
    counts = np.where(injected["y"] == 1, np.random.default_rng(3).integers(1, 60, 300), 0).astype(np.int32)
    pool = PooledStores([recorded, injected.replace(attack_count=counts)], ["train", "injected"])
    config = CURRICULUM.model_copy(update={"graphs_per_epoch": 200, "end_ratio": None, **curriculum})
    return CurriculumSource(pool, np.random.default_rng(1).normal(size=700), config, sampling, TRAINING, 0)


def test_it_ends_with_the_mixture_of_the_plain_network() -> None:
    sampling = SamplingConfig(graphs_per_epoch=200, injected_fraction=0.6)
    source = _two_stores(sampling)
    plain = SampledSource(source.pool, sampling, TRAINING, 0)
    windows, expected = source.epoch_graphs(5), plain.epoch_graphs(5)
    assert len(windows) == len(expected) == 200
    for label in (0, 1):
        for name in ("train", "injected"):
            counts = [
                int((np.isin(drawn, source.pool.indices_of(name)) & (source.pool.labels[drawn] == label)).sum())
                for drawn in (windows, expected)
            ]
            assert counts[0] == pytest.approx(counts[1], abs=8), (label, name)


def test_attacks_with_many_messages_come_first_and_all_of_them_in_the_end() -> None:
    source = _two_stores(SamplingConfig(injected_fraction=0.6), start_competence=0.25)
    counts = np.concatenate([part["attack_count"] for part in source.pool.parts])
    injected = source.pool.indices_of("injected")
    smallest = []
    for epoch in range(6):
        windows = source.epoch_graphs(epoch)
        attacked = windows[np.isin(windows, injected) & (source.pool.labels[windows] == 1)]
        smallest.append(int(counts[attacked].min()))
    assert smallest[0] > 30
    assert sorted(smallest, reverse=True) == smallest
    assert smallest[-1] <= 3
