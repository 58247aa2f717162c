"""Training steps of a pretraining, measured beside what `kdgat.trees.training.memory` predicts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from kdgat.base.configuration import validate_config
from kdgat.graphs.batches import TensorColumns
from kdgat.graphs.columns import GraphColumns
from kdgat.training.allocator import return_freed_memory
from kdgat.training.averages import Averages
from kdgat.training.measure import StepMeasurement, measure_steps, run_alone
from kdgat.training.random_state import seed_everything
from kdgat.trees.graphs.columns import tree_columns
from kdgat.trees.objectives.growth import channels_of
from kdgat.trees.sections import PretrainStageConfig
from kdgat.trees.synthetic.dataset import draw
from kdgat.trees.training.memory import TreeCounts
from kdgat.trees.training.peak import allocation, backward, counts_of
from kdgat.trees.training.pretraining import PretrainedTrees, PretrainObjective

NUM_TREES = 30  # that are drawn; larger batches hold them several times
LENGTH_RANGE = (0.2, 5.0)


@dataclass(frozen=True)
class Measurement:
    """One step, measured.

    Attributes:
        counts: of the batch.
        num_trees: of the batch.
        kept_bytes, allocated_bytes: of torch's tensors on the CPU, after the forward pass and at most, weights and
            optimizer included in the latter.
        steps: what the process took, or on a GPU its allocator.
    """

    counts: TreeCounts
    num_trees: int
    kept_bytes: int
    allocated_bytes: int
    steps: StepMeasurement | None


def measure_step(config: PretrainStageConfig, num_nodes: int, num_steps: int = 2) -> Measurement:
    """Measure steps of a batch of drawn trees with at least `num_nodes` nodes, in a process of its own.

    Raises:
        UserError: if that process could not, for instance for lack of memory.
    """
    return run_alone(measure_here, config.model_dump(mode="json"), num_nodes, num_steps)


def measure_here(content: dict[str, Any], num_nodes: int, num_steps: int) -> Measurement:
    """Measure steps in this process: what the process takes, then what torch allocates; the former if `num_steps`."""
    config = validate_config(PretrainStageConfig, content)
    columns = _columns(num_nodes)
    chosen = np.asarray(trees_of(columns, num_nodes))
    tensors = TensorColumns.from_columns(columns)
    seed_everything(0)
    objective = PretrainObjective(PretrainedTrees(config, channels_of(LENGTH_RANGE, config.growth)), config)
    steps = None
    if num_steps:
        return_freed_memory()
        # What the first step loads, whatever its size, is no part of a batch.
        with Averages().listen(objective):
            backward(objective.training_step(tensors.gather(np.zeros(1, np.int64))))
        objective.zero_grad()
        steps = measure_steps(objective, tensors.gather(chosen), config.training, num_steps=num_steps)
    kept, allocated = 0, 0
    if steps is None or not steps.on_gpu:
        kept, allocated = allocation(objective, lambda: tensors.gather(chosen), config)
    return Measurement(counts_of(columns, chosen), len(chosen), kept, allocated, steps)


def _columns(num_nodes: int) -> GraphColumns:
    parts: list[GraphColumns] = []
    for place, one in enumerate(draw("neurons", None, NUM_TREES, 0)):
        parts.append(tree_columns(one.tree, 1.0, place))
        if sum(part.num_nodes for part in parts) >= num_nodes:
            break
    return GraphColumns.concatenate(parts)


def trees_of(columns: GraphColumns, num_nodes: int) -> list[int]:
    """Choose trees one after the other, and again from the first, until they have so many nodes."""
    totals = itertools.accumulate(itertools.cycle(columns.node_counts.tolist()))
    count = next(place for place, total in enumerate(totals, start=1) if total >= num_nodes)
    return [place % columns.num_graphs for place in range(count)]
