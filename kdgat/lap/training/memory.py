"""How much memory a training step takes: a table of what autograd keeps for the backward pass, without torch.

`tests/lap/training/test_memory.py` holds the table to what torch keeps. What a step takes beside that (gradients on
their way, buffers of the allocator) is a factor, which `kdgat lap analyze --memory` shows beside a measurement.
"""

from collections.abc import Mapping
from typing import Final

from kdgat.lap.config import LapConfig
from kdgat.lap.sections import GraphConfig
from kdgat.training.footprint import BatchShape, Footprint, batch_shape, total_bytes

# Measured by `kdgat lap analyze --memory` on a CPU: peak above the start over the tensors kept.
KEPT_FACTOR: Final = 2.5
# Measured by `benchmarks/lap_memory.py`; rows and widths: `rows_of` and `widths_of`.
KEPT: Final[Footprint] = {
    "row entry": {"": 8, "sweeps": 12, "rounds": 22, "rounds heads": 16, "losses": 5},
    "column entry": {"": 8, "sweeps": 12, "rounds": 22, "rounds heads": 16, "losses": 10},
    "witness": {"": 8, "rounds": 4, "losses": 8},
    "pair": {
        "": 16,
        "sweeps": 24,
        "rounds": 91,
        "rounds witnessed": 4,
        "rounds width": 16,
        "rounds hidden": 16,
        "rounds heads": 88,
        "losses": 22,
        "losses witnessed": 8,
        "losses distances": 12,
    },
    "graph": {"": 8, "distances": 8, "sweeps": 16, "rounds heads": 8},
}


def num_edges(size: int, graph: GraphConfig) -> int:
    """Return the edges of one labelled instance's graph."""
    return size * (graph.row_neighbours + graph.witnesses + graph.column_neighbours)


def stage_batch(config: LapConfig, name: str, num_instances: int) -> BatchShape:
    """Return the largest batch of a stage that trains on so many instances."""
    size, training = config.progression[name].size, config.training_for(name)
    return batch_shape(training, num_instances, nodes=2 * size, edges=num_edges(size, config.graph))


def kept_bytes(size: int, config: LapConfig) -> int:
    """Return the bytes that autograd keeps of a training step over one instance on a CPU, in 32-bit precision."""
    return round(total_bytes(rows_of(size, config), widths_of(config), KEPT))


def rows_of(size: int, config: LapConfig) -> Mapping[str, float]:
    """Return what tensors of a step over one instance have a row for."""
    graph = config.graph
    return {
        "row entry": size * graph.row_neighbours,
        "column entry": size * graph.column_neighbours,
        "witness": size * graph.witnesses,
        "pair": size,  # of a row and a column
        "graph": 1,
    }


def widths_of(config: LapConfig) -> Mapping[str, float]:
    """Return the widths of the network; some are 0 or 1 for no and yes."""
    dual = config.model.dual
    return {
        "sweeps": dual.sweeps,
        "rounds": dual.rounds,
        "heads": dual.heads,
        "width": dual.width,
        "hidden": dual.hidden,
        "losses": dual.rounds if config.loss.round_discount > 0.0 else 1,
        "witnessed": config.graph.witnesses > 0,
        "distances": config.loss.huber_weight > 0.0,  # to the solver's duals
    }


def step_bytes(config: LapConfig, name: str, num_instances: int) -> int:
    """Return what a training step of a stage takes above the process itself."""
    at_once = stage_batch(config, name, num_instances).graphs_at_once
    return round(KEPT_FACTOR * at_once * kept_bytes(config.progression[name].size, config))
