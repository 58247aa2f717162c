import numpy as np
import pytest
import torch

from benchmarks.tree_memory import LENGTH_RANGE, Measurement, measure_here, measure_step
from kdgat.graphs import TensorColumns
from kdgat.training.footprint import total_bytes
from kdgat.training.measure import measure_training_step
from kdgat.trees.models.classifier import TreePredictor
from kdgat.trees.names import FINETUNE, GIN, PRETRAIN
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.sections import (
    EncoderConfig,
    FinetuneStageConfig,
    GrowthConfig,
    HeadConfig,
    OrderConfig,
    PretrainStageConfig,
)
from kdgat.trees.structure.tree import count_paths
from kdgat.trees.training.finetuning import FinetuneObjective, Task
from kdgat.trees.training.memory import (
    ARCHITECTURES,
    ENCODER,
    HEADS,
    TreeCounts,
    predict_peak,
    rows_of,
    widths_of,
    work_of,
)
from kdgat.trees.training.pretraining import PretrainedTrees
from kdgat.trees.training.source import counts_of
from tests.trees.examples import columns_of, random_tree

TOLERANCE = 0.15
CASES = [
    {"hidden": 16, "interactions": 1, "num_distances": 50},
    {"hidden": 64, "interactions": 3, "num_distances": 50},
    {"hidden": 128, "interactions": 2, "num_distances": 8},
]


def config_of(encoder: dict, precision: str = "32-true", **sections) -> PretrainStageConfig:
    training = {"accelerator": "cpu", "precision": precision}
    return PretrainStageConfig(encoder=EncoderConfig(**encoder), training=training, **sections)


def num_parameters(config: PretrainStageConfig) -> int:
    return ARCHITECTURES[PRETRAIN].num_parameters(widths_of(config))


def kept_bytes(config: PretrainStageConfig, batch: TreeCounts) -> float:
    rows = {**rows_of(config, batch), "weight": num_parameters(config)}
    return total_bytes(rows, widths_of(config), ENCODER, HEADS)


def measured(config: PretrainStageConfig, num_nodes: int = 400) -> Measurement:
    return measure_here(config.model_dump(mode="json"), num_nodes, 0)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("encoder", "kind", "precision"),
    [
        *((case, kind, "32-true") for case in CASES for kind in ("gtmp", "sgmp")),
        (CASES[0], "sgmp", "bf16-mixed"),  # slow on a CPU
    ],
    ids=str,
)
def test_what_a_step_is_predicted_to_take_is_what_torch_allocates(encoder, kind, recompute, precision) -> None:
    config = config_of({**encoder, "kind": kind, "recompute": recompute}, precision)
    found = measured(config)
    assert kept_bytes(config, found.counts) == pytest.approx(found.kept_bytes, rel=0.08)
    assert predict_peak(PRETRAIN, config, found.counts) == pytest.approx(found.allocated_bytes, rel=TOLERANCE)


@pytest.mark.parametrize(
    "sections",
    [
        {"order": OrderConfig(weight=0)},
        {"order": OrderConfig(width=256)},
        {"growth": GrowthConfig(components=9, num_lengths=40, num_angles=5, num_radii=7)},
    ],
    ids=str,
)
@pytest.mark.parametrize("recompute", [False, True])
def test_objectives_count_too(sections, recompute) -> None:
    config = config_of({"hidden": 48, "interactions": 2, "recompute": recompute}, **sections)
    found = measured(config)
    assert kept_bytes(config, found.counts) == pytest.approx(found.kept_bytes, rel=0.08)
    assert predict_peak(PRETRAIN, config, found.counts) == pytest.approx(found.allocated_bytes, rel=TOLERANCE)


def test_recomputation_keeps_what_is_predicted_and_less_than_half() -> None:
    kept = []
    for recompute in (False, True):
        config = config_of({"recompute": recompute})
        found = measured(config)
        kept.append(found.kept_bytes)
        assert kept_bytes(config, found.counts) == pytest.approx(kept[-1], rel=0.08)
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize("is_gin", [False, True])
@pytest.mark.parametrize("encoder", CASES, ids=str)
def test_what_a_fine_tuning_is_predicted_to_take_is_what_torch_allocates(encoder, is_gin) -> None:
    config = FinetuneStageConfig(encoder=EncoderConfig(**encoder), training={"accelerator": "cpu"})
    columns = columns_of([random_tree(seed, 200) for seed in range(10)])
    columns = columns.replace(label=(np.arange(10) % 2).astype(np.int32))
    tensors = TensorColumns.from_columns(columns)
    objective = FinetuneObjective(
        TreePredictor(config.encoder, HeadConfig(), 2, is_gin=is_gin), Task(("one", "other"))
    )  # fmt: skip
    _, allocated = measure_training_step(objective, lambda: tensors.gather(np.arange(10)), config.training.precision)
    predicted = predict_peak(GIN if is_gin else FINETUNE, config, counts_of(columns, range(10)))
    assert predicted == pytest.approx(allocated, rel=TOLERANCE)


@pytest.mark.parametrize("encoder", [*CASES, {"kind": "sgmp", "hidden": 6, "interactions": 4}], ids=str)
def test_parameters_are_counted_without_torch(encoder) -> None:
    config = config_of(encoder, growth=GrowthConfig(components=3), order=OrderConfig(width=10))
    model = PretrainedTrees(config, channels_of(LENGTH_RANGE, config.growth))
    assert num_parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_counts_of_a_batch_are_the_sums_of_its_trees() -> None:
    trees = [random_tree(seed) for seed in range(3)]
    counts = counts_of(columns_of(trees), [0, 2, 2])
    single = [count_paths(tree) for tree in trees]
    assert counts.nodes == 3 * 40
    assert counts.general == single[0].general + 2 * single[2].general
    assert counts.paths(EncoderConfig()) == sum(single[one].ancestors + single[one].branches for one in (0, 2, 2))


@pytest.mark.processes
@pytest.mark.nightly  # beside other tests the heap of a process is anybody's
def test_a_process_takes_what_is_predicted() -> None:
    config = config_of({"hidden": 64, "interactions": 2})
    ballast = bytearray(1 << 30)  # of this process alone
    found = measure_step(config, 10_000)
    del ballast
    assert found.steps is not None
    grown = found.steps.peak_bytes - found.steps.start_bytes
    assert predict_peak(PRETRAIN, config, found.counts) == pytest.approx(grown, rel=TOLERANCE)


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_allocates_what_is_predicted() -> None:
    config = config_of({"hidden": 64, "interactions": 3})
    training = config.training.model_copy(update={"accelerator": "cuda"})
    config = config.model_copy(update={"training": training})
    found = measure_step(config, 50_000)
    assert found.steps is not None
    assert found.steps.on_gpu
    assert predict_peak(PRETRAIN, config, found.counts) == pytest.approx(found.steps.peak_bytes, rel=TOLERANCE)


def test_work_grows_with_width_rounds_and_recomputation() -> None:
    assert work_of(EncoderConfig()) == 1.0
    assert work_of(EncoderConfig(interactions=6)) == 2.0
    assert work_of(EncoderConfig(recompute=True)) == pytest.approx(4 / 3)
    assert 2 < work_of(EncoderConfig(hidden=128)) < 4
