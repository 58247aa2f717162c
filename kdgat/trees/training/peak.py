"""The largest memory of a pretraining: what was predicted from the counts of its batches, and what torch allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.graphs import GraphColumns
from kdgat.training.averages import Averages
from kdgat.training.batch_size import cut
from kdgat.training.measure import measure_allocation
from kdgat.trees.sections import FinetuneStageConfig, PretrainStageConfig
from kdgat.trees.training.memory import TreeCounts, predict_peak
from kdgat.trees.training.source import TreeBatchSource

PATHS = ("ancestors", "branches", "general")


def measure_peak(
    config: PretrainStageConfig, objective: LightningModule, columns: GraphColumns, source: TreeBatchSource, epochs: int
) -> dict[str, float]:
    """Return predicted and measured bytes of the largest part of a batch among these epochs, once training is over.

    CUDA's allocator has counted while this process trained, which is less than all where a stage was resumed. On the
    CPU the memory of a process says little about a batch of some megabytes: a step more is counted by torch's profiler,
    after which the weights of `objective` are spent.
    """
    parts = [
        part
        for epoch in range(epochs)
        for indices in source.plan(epoch)
        for part in cut(indices, config.training.accumulate)
    ]
    predicted = [predict_peak(config, counts_of(columns, part)).bytes for part in parts]
    largest = int(np.argmax(predicted))
    on_gpu = next(objective.parameters()).device.type == "cuda"
    if on_gpu:
        measured = torch.cuda.max_memory_allocated()
    else:
        objective.cpu().train()
        _, measured = allocation(objective, lambda: source.gather(parts[largest]), config)
    return {
        "peak_bytes": float(measured),
        "predicted_peak_bytes": float(predicted[largest]),
        "peak_on_gpu": float(on_gpu),
    }


def counts_of(columns: GraphColumns, chosen: Sequence[int] | NDArray[np.int64]) -> TreeCounts:
    """Sum the counts of trees."""
    paths = (float(np.asarray(columns[name])[chosen].sum()) for name in PATHS)
    return TreeCounts(float(columns.node_counts[chosen].sum()), *paths)


def allocation(
    objective: LightningModule, batch: Callable[[], Batch], config: PretrainStageConfig | FinetuneStageConfig
) -> tuple[int, int]:
    """Return the bytes of tensors that a step on the CPU keeps for its backward pass, and those that it has at most."""
    weights = sum(parameter.nbytes for parameter in objective.parameters())
    # States of the optimizer stay from step to step: they are made before anything is counted.
    optimizer = torch.optim.AdamW(objective.parameters(), fused=True)
    mixed = config.training.precision.endswith("-mixed")
    losses: list[Any] = []

    def forwards() -> None:
        made = batch()
        with Averages().listen(objective), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            losses.append(objective.training_step(made))

    def step() -> None:
        forwards()
        backward(losses.pop())
        optimizer.step()
        optimizer.zero_grad()

    step()
    kept = measure_allocation(forwards).end_bytes
    losses.clear()
    return kept, measure_allocation(step).peak_bytes + 3 * weights


def backward(loss: Any) -> None:
    """Compute gradients of a loss."""
    assert isinstance(loss, Tensor)
    loss.backward()  # type: ignore[no-untyped-call]
