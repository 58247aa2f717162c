"""Measure the table of `kdgat.lap.training.memory`: what autograd keeps of a training step on an assignment problem.

    OMP_NUM_THREADS=1 python benchmarks/lap_memory.py

Counts the bytes of steps on random graphs with random networks, finds the table by least squares, and prints it beside
the one that stands there. The bytes are whole numbers, and exact.
"""

from __future__ import annotations

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.graphs import TensorColumns
from kdgat.lap.config import LapConfig
from kdgat.lap.models import make_model
from kdgat.lap.training.memory import KEPT, rows_of, widths_of
from kdgat.lap.training.objective import WarmStartObjective
from kdgat.lap.training.step_measurement import random_columns
from kdgat.training.averages import Averages
from kdgat.training.footprint import total_bytes

CASES = 150


def count_kept_bytes(module: LightningModule, batch: Batch) -> int:
    """Count the bytes of all tensors that autograd keeps of one training step, each storage once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with Averages().listen(module), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module.training_step(batch)
    del loss  # until here every storage is alive, so that no address stands for two
    return sum(kept.values())


def count_step(size: int, config: LapConfig) -> int:
    """Count what a step over one instance keeps."""
    columns = TensorColumns.from_columns(random_columns(size, config.graph))
    objective = WarmStartObjective(make_model(config.model), config.loss)
    return count_kept_bytes(objective, columns.gather(np.zeros(1, np.int64)))


def random_config(generator: np.random.Generator) -> LapConfig:
    """Draw a configuration."""
    row, column, sweeps, rounds, hidden, heads, width = generator.integers(2, 9, 7)
    witnesses, distances, losses = generator.integers(0, 2, 3)
    return LapConfig.from_preset(
        "quick",
        {},
        [
            f"graph={{row_neighbours: {row}, column_neighbours: {column}, witnesses: {witnesses * (row + column)}}}",
            f"model.dual={{sweeps: {sweeps}, rounds: {rounds}, hidden: {hidden}, heads: {heads}, width: {width}}}",
            f"loss.huber_weight={0.1 * distances}",
            f"loss.round_discount={0.5 * losses}",
        ],
    )


def main() -> None:
    """Measure and print."""
    generator = np.random.default_rng(0)
    terms = [(row, product) for row, products in KEPT.items() for product in products]
    equations, counted = [], []
    for _ in range(CASES):
        config, size = random_config(generator), int(generator.integers(20, 60))
        rows, widths = rows_of(size, config), widths_of(config)
        equations.append([total_bytes(rows, widths, {row: {product: 1}}) for row, product in terms])
        counted.append(count_step(size, config))
    left = np.array(equations, np.float64)
    scale = left.max(axis=0)
    amounts = np.linalg.lstsq(left / scale, np.array(counted, np.float64), rcond=None)[0] / scale
    for (row, product), amount in zip(terms, amounts, strict=True):
        print(f"{row:14}{product or '-':18}{amount:10.3f}{KEPT[row][product]:8}")


if __name__ == "__main__":
    main()
