"""What fits a GPU: the batch, width and depth that `kdgat plan trees` recommends, from predicted memory and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kdgat.base import MIB, describe_bytes, validate_config
from kdgat.base.text import describe_seconds
from kdgat.cluster import format_memory
from kdgat.cluster.resources import parse_memory
from kdgat.run import PlannedStage
from kdgat.training.footprint import BatchShape, batch_shape, largest_that_fits
from kdgat.trees.config import TreesConfig
from kdgat.trees.names import PRETRAIN
from kdgat.trees.sections import FinetuneStageConfig, PathBudgetConfig, PretrainStageConfig
from kdgat.trees.training.counts import DatasetCounts
from kdgat.trees.training.memory import ARCHITECTURES, predict_peak, work_of

GPU_SIZES: Final = ("8G", "12G", "16G", "24G")
# CUDA's context, the code of the kernels, and what matrix products work with: nothing of it is seen by the allocator.
CONTEXT_BYTES: Final = 600 * MIB
USABLE: Final = 0.85  # of what is left: gaps between blocks, and trees larger than those that were looked at
USEFUL_TREES: Final = 64  # in a batch, as published; more of them make steps fewer, and no better
PATHS_STEP: Final = 1024
# From what is wanted to what is bearable: time is given up first, then reach, then width.
SETTINGS: Final[Sequence[Mapping[str, Any]]] = tuple(
    {"hidden": hidden, "interactions": interactions, "num_distances": distances, "recompute": recompute}
    for hidden, interactions, distances, recompute in (
        (64, 3, 50, False),
        (64, 3, 50, True),
        (64, 2, 20, True),
        (32, 2, 20, True),
        (16, 2, 20, True),
        (16, 1, 20, True),
    )
)
# Paths of H=64, L=3 that a training step goes through in a second. Of a CPU core: measured, by
# `benchmarks/tree_memory.py`. Of a GPU: not measured; ten times a core, and a twentieth of a second to start the
# kernels of a step, is less than small GPUs do, so that the times are an upper bound.
PATHS_PER_S: Final = {"cpu": 3_000.0, "gpu": 30_000.0}
STEP_S: Final = {"cpu": 0.01, "gpu": 0.05}


class Recommendation(NamedTuple):
    """Settings that fit a GPU."""

    config: PretrainStageConfig
    most_trees: int  # that would fit into one part of a batch
    peak_bytes: int

    @property
    def overrides(self) -> list[str]:
        """Return the settings as -O takes them."""
        encoder, training = self.config.encoder, self.config.training
        return [
            *(f"encoder.{key}={str(getattr(encoder, key)).lower()}" for key in SETTINGS[0]),
            f"batches.max_paths={self.config.batches.max_paths}",
            f"training.batch_size={training.batch_size}",
            f"training.accumulate={training.accumulate}",
        ]


def usable_bytes(gpu_mib: int) -> float:
    """Return what tensors may take of a GPU's memory."""
    return USABLE * (gpu_mib * MIB - CONTEXT_BYTES)


def recommend(config: PretrainStageConfig, counts: DatasetCounts, gpu_mib: int) -> Recommendation | None:
    """Return the largest of `SETTINGS` that fits a GPU, with batches of up to `USEFUL_TREES`; None if none does.

    A batch that does not fit at once goes through the model in parts, which costs next to nothing; recomputation, which
    costs a third, is for trees of which not even one fits.
    """
    wanted = min(USEFUL_TREES, counts.num_training)
    for settings in SETTINGS:
        encoder = config.encoder.model_copy(update=dict(settings))
        paths = wanted * counts.mean.paths(encoder)
        batches = PathBudgetConfig(max_paths=PATHS_STEP * math.ceil(paths / PATHS_STEP))
        # Gradients are there while the next part is computed.
        training = config.training.model_copy(update={"accumulate": 2, "batch_size": wanted})
        tried = config.model_copy(update={"encoder": encoder, "batches": batches, "training": training})
        most = most_trees(tried, counts, usable_bytes(gpu_mib))
        if most == 0:
            continue
        training = training.model_copy(update={"accumulate": math.ceil(wanted / min(wanted, most))})
        tried = tried.model_copy(update={"training": training})
        return Recommendation(tried, most, batch_peak(PRETRAIN, tried, counts))
    return None


def most_trees(config: PretrainStageConfig, counts: DatasetCounts, usable: float) -> int:
    """Return how many trees fit at one time."""
    return largest_that_fits(lambda count: predict_peak(PRETRAIN, config, counts.of_part(count)) <= usable, start=1)


def tree_batch(config: PretrainStageConfig | FinetuneStageConfig, counts: DatasetCounts) -> BatchShape:
    """Return the largest batch of average trees, as it is cut by its budget and `training.accumulate`."""
    training, paths = config.training, config.batches.max_paths
    share = 1.0 if isinstance(config, PretrainStageConfig) else max(config.label_fractions)
    return batch_shape(
        training,
        max(1, round(share * counts.num_training)),
        nodes=counts.mean.nodes,
        edges=counts.mean.ancestors,
        max_graphs=None if paths is None else min(training.batch_size, paths // counts.mean.paths(config.encoder)),
    )


def batch_peak(stage: str, config: PretrainStageConfig | FinetuneStageConfig, counts: DatasetCounts) -> int:
    """Return the bytes that the steps of a stage take above the process itself."""
    return predict_peak(stage, config, counts.of_part(tree_batch(config, counts).graphs_at_once))


def stage_bytes(planned: PlannedStage, counts: DatasetCounts) -> int | None:
    """Return what the steps of a planned stage take above the process itself, also those that search for its batches.

    None of a stage that does not train.
    """
    if planned.stage not in ARCHITECTURES:
        return None
    config: PretrainStageConfig | FinetuneStageConfig = (
        validate_config(PretrainStageConfig, planned.config)
        if planned.stage == PRETRAIN
        else validate_config(FinetuneStageConfig, planned.config)
    )
    return config.training.search_bytes() or batch_peak(planned.stage, config, counts)


def pretraining(config: TreesConfig) -> PretrainStageConfig:
    """Return the configuration of the pretraining of a run."""
    return PretrainStageConfig(
        encoder=config.encoder,
        growth=config.growth,
        order=config.order,
        batches=config.batches,
        training=config.training_for(PRETRAIN),
    )


def epoch_seconds(config: PretrainStageConfig, counts: DatasetCounts, device: str) -> float:
    """Return the time of an epoch of training on "cpu", a core, or "gpu"."""
    # The largest tree counts as the average ones that it is as large as.
    at_once = counts.of_part(tree_batch(config, counts).graphs_at_once).nodes / counts.mean.nodes
    steps = math.ceil(counts.num_training / (round(at_once) * config.training.accumulate)) * config.training.accumulate
    paths = counts.num_training * counts.mean.paths(config.encoder)
    return steps * STEP_S[device] + paths * work_of(config.encoder) / PATHS_PER_S[device]


def describe_memory(config: TreesConfig, gpu_memory: str | None, counts: DatasetCounts) -> Sequence[str]:
    """Say what the configured batch takes and how long an epoch lasts; for a GPU, what fits it and those beside it.

    Args:
        config: of the run.
        gpu_memory: of a GPU, as 8G; None: nothing is recommended.
        counts: of the trees.

    Raises:
        UserError: if `gpu_memory` cannot be read.
    """
    own = pretraining(config)
    on_core, on_gpu = (describe_seconds(epoch_seconds(own, counts, device)) for device in ("cpu", "gpu"))
    lines = [
        f"\nA tree has {counts.mean.nodes:,.0f} nodes and {counts.mean.paths(own.encoder):,.0f} paths "
        f"({counts.source}).",
        f"A step of the pretraining takes {describe_bytes(batch_peak(PRETRAIN, own, counts))} beside the process. An "
        f"epoch takes {on_core} on a core (estimated from measured steps), at most {on_gpu} on a GPU (not measured).",
    ]
    if gpu_memory is None:
        return lines
    asked = parse_memory(gpu_memory)
    sizes = sorted({asked, *map(parse_memory, GPU_SIZES)})
    found = {size: recommend(own, counts, size) for size in sizes}
    lines += [
        f"\nWhat fits of {own.encoder.kind} in {own.training.precision} "
        f"({USABLE:.0%} of a GPU without the {describe_bytes(CONTEXT_BYTES)} of CUDA's context; parts: "
        "training.accumulate; most trees: in one part):",
        *_table(found, asked, counts),
        "Memory is predicted, and was compared with measured steps on a CPU; the time of a GPU is an upper bound that "
        "was not measured.",
    ]
    chosen = found[asked]
    if chosen is None:
        can_contract = config.data.data_root is not None and not config.data.contract
        fix = "contract the trees (-O data.contract=true), or use another GPU" if can_contract else "use another GPU"
        return [*lines, f"No setting fits {gpu_memory}: {fix}."]
    return [*lines, f"\nTo use what fits {gpu_memory}: {' '.join(f'-O {one}' for one in chosen.overrides)}"]


def _table(found: Mapping[int, Recommendation | None], asked: int, counts: DatasetCounts) -> list[str]:
    headings = ("GPU", "batch", "max_paths", "parts", "hidden", "interactions", "distances", "recompute",
                "memory", "most trees", "epoch")  # fmt: skip
    rows: list[tuple[str, ...]] = [headings]
    for size, one in found.items():
        name = f"{'> ' if size == asked else ''}{format_memory(size)}"
        if one is None:
            rows.append((name, "nothing fits", *[""] * (len(headings) - 2)))
            continue
        encoder, training = one.config.encoder, one.config.training
        rows.append(
            (
                name, f"{training.batch_size} trees", f"{one.config.batches.max_paths:,}", str(training.accumulate),
                str(encoder.hidden), str(encoder.interactions), str(encoder.num_distances),
                "yes" if encoder.recompute else "no", describe_bytes(one.peak_bytes), f"{one.most_trees:,}",
                describe_seconds(epoch_seconds(one.config, counts, "gpu")),
            )
        )  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
