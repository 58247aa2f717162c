import shlex

import pytest

from kdgat.base import UserError
from kdgat.cluster.resources import parse_memory
from kdgat.trees.config import TreesConfig
from kdgat.trees.family import FAMILY
from kdgat.trees.names import PRETRAIN
from kdgat.trees.training.counts import DatasetCounts, count_tree, estimate_counts
from kdgat.trees.training.memory import TreeCounts, predict_peak
from kdgat.trees.training.recommendation import (
    GPU_SIZES,
    describe_memory,
    most_trees,
    pretraining,
    recommend,
    usable_bytes,
)
from tests.trees.examples import random_tree

SMALL = DatasetCounts.of([random_tree(seed, 120) for seed in range(5)], 500, "5 trees")


def config_of(*overrides: str) -> TreesConfig:
    return TreesConfig.from_preset("quick", {}, [*overrides])


def times(factor: float) -> DatasetCounts:
    return DatasetCounts(SMALL.mean.times(factor), SMALL.largest.times(factor), 500, "larger trees")


@pytest.mark.parametrize("factor", [1, 30, 1000, 20_000, 100_000])
@pytest.mark.parametrize("kind", ["gtmp", "sgmp"])
def test_what_is_recommended_fits_and_a_larger_gpu_gets_no_less(kind: str, factor: float) -> None:
    config, counts = pretraining(config_of(f"encoder.kind={kind}")), times(factor)
    found = [recommend(config, counts, parse_memory(size)) for size in GPU_SIZES]
    before = (0, 0, False, 0)
    for size, one in zip(GPU_SIZES, found, strict=True):
        if one is None:
            assert before == (0, 0, False, 0), "a smaller one had room"
            continue
        encoder = one.config.encoder
        assert one.peak_bytes <= usable_bytes(parse_memory(size))
        now = (encoder.hidden, encoder.interactions, not encoder.recompute, one.most_trees)
        assert now[:3] > before[:3] or now[3] >= before[3]
        before = now


def test_small_trees_get_published_width_and_a_whole_batch_and_large_ones_are_computed_again() -> None:
    config, size = pretraining(config_of()), parse_memory("8G")
    small = recommend(config, SMALL, size)
    assert small is not None
    assert (small.config.encoder.hidden, small.config.encoder.interactions, small.config.training.batch_size) == (
        64,
        3,
        64,
    )
    assert (small.config.encoder.recompute, small.config.training.accumulate) == (False, 1)
    middle = recommend(config, times(200), size)
    assert middle is not None
    assert not middle.config.encoder.recompute
    assert middle.config.training.accumulate > 1
    large = recommend(config, times(2_000), size)
    assert large is not None
    assert large.config.encoder.recompute
    assert large.config.encoder.hidden == 64
    assert recommend(config, times(1_000_000), size) is None


def test_no_further_tree_fits() -> None:
    config, usable = pretraining(config_of()), usable_bytes(8192)
    most = most_trees(config, SMALL, usable)
    fits = [predict_peak(PRETRAIN, config, SMALL.of_part(count)) <= usable for count in (most, most + 1)]
    assert fits == [True, False]
    assert most_trees(config, SMALL, 1.0) == 0


def test_the_line_of_overrides_makes_the_configuration_that_was_recommended() -> None:
    lines = describe_memory(config_of(), "8G", SMALL)
    arguments = shlex.split(lines[-1].partition(": ")[2])
    config = config_of(*(one for one in arguments if one != "-O"))
    wanted = recommend(pretraining(config_of()), SMALL, 8192)
    assert wanted is not None
    assert pretraining(config).encoder == wanted.config.encoder
    assert pretraining(config).batches == wanted.config.batches
    assert pretraining(config).training.accumulate == wanted.config.training.accumulate
    for size in GPU_SIZES:
        assert any(line.strip(" >").startswith(f"{size} ") for line in lines)


def test_a_plan_tells_the_memory_of_each_stage_and_recommends_when_asked() -> None:
    run = FAMILY.plan(config_of("seeds=[0]"))
    plain = FAMILY.describe(run, {}, {})
    assert plain.cells["pretrain-seed0"][0].endswith("iB")
    assert plain.cells["prepare"] == [""]
    assert not any("max_paths" in line for line in plain.after)
    assert any("batches.max_paths=" in line for line in FAMILY.describe(run, {}, {"gpu_memory": "10G"}).after)
    with pytest.raises(UserError, match="memory='much'"):
        FAMILY.describe(run, {}, {"gpu_memory": "much"})


def test_a_stage_that_searches_for_its_batches_takes_what_the_search_may_take() -> None:
    run = FAMILY.plan(config_of("seeds=[0]", "training.batch_size_mode=trial", "training.memory_budget=3G"))
    cells = FAMILY.describe(run, {}, {}).cells
    assert {name: cell for name, [cell] in cells.items() if cell} == {
        f"{stage}-seed0": "6.0 GiB" for stage in ("pretrain", "finetune", "scratch", "gin")
    }


def test_where_nothing_fits_only_trees_that_can_be_contracted_shall_be() -> None:
    def fix_for(*overrides: str) -> str:
        return describe_memory(config_of(*overrides), "8G", times(1_000_000))[-1]

    drawn, read = "No setting fits 8G: use another GPU.", "data.data_root=somewhere"
    assert fix_for() == drawn
    assert "contract the trees (-O data.contract=true)" in fix_for(read)
    assert fix_for(read, "data.contract=true") == drawn


def test_files_are_counted_before_they_are_prepared(tmp_path) -> None:
    for place in range(30):
        rows = ["1 1 0 0 0 1 -1", *(f"{node} 3 {node} {node % 3} 0 1 {node - 1}" for node in range(2, 12))]
        (tmp_path / f"{place}.swc").write_text("\n".join(rows))
    (tmp_path / "0.swc").write_text("broken")
    counts = estimate_counts(config_of(f"data.data_root={tmp_path}"))
    assert counts.mean == count_chain(11)
    assert counts.source == "an estimate from 20 of 30 files, of which 1 cannot be read"
    assert counts.num_training == pytest.approx(0.7 * 29, abs=2)


def count_chain(count: int) -> TreeCounts:
    from kdgat.trees.structure.tree import Tree

    return count_tree(Tree.from_parents(range(-1, count - 1), [[place, 0.0] for place in range(count)]))
