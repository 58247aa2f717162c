"""How much memory a training step takes: computed from the configuration, with nothing that computes loaded.

Autograd keeps tensors for the backward pass. How many numbers there are for each edge, row and column follows from the
configuration; `tests/lap/training/test_memory.py` holds the formula to what torch keeps. What a step takes beside that
(gradients on their way, buffers of the allocator) is a factor that was measured by `kdgat lap analyze --memory`, which
shows prediction and measurement beside each other.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from kdgat.base import MIB
from kdgat.cluster import format_memory
from kdgat.lap.config import LapConfig
from kdgat.lap.plan import members
from kdgat.lap.sections import (
    DualNetworkConfig,
    GraphConfig,
    ModelConfig,
    WarmStartLossConfig,
)
from kdgat.run import EVALUATION, PlannedStage
from kdgat.training import TrainingConfig

SAMPLE_SIZE: Final = 128  # rows of the graph whose bytes are divided by its edges
FLOAT, INDEX, FLAG = 4, 8, 1  # bytes
# Measured by `kdgat lap analyze --memory` on a CPU: peak above the start over the tensors kept, and the start itself.
KEPT_FACTOR: Final = 2.5
PROCESS_BYTES: Final = 600 * MIB  # torch, torch-geometric and lightning, loaded
GPU_PROCESS_BYTES: Final = 3072 * MIB  # of the host, with CUDA's libraries
# A preparation or an evaluation holds this many matrices of n x n numbers of 8 bytes at its peak.
PEAK_MATRICES: Final = 8
JOB_HEADROOM: Final = 1.5  # of what a job asks for above what is predicted
SMALLEST_JOB_MIB: Final = 2048


@dataclass(frozen=True)
class BatchShape:
    """The largest batch of a stage, as cut by its budget of edges."""

    num_graphs: int
    num_edges: int  # of all graphs in it
    num_parts: int  # that it goes through the model in (training.accumulate)

    @property
    def graphs_at_once(self) -> int:
        """Return how many graphs are in the model at one time."""
        return -(-self.num_graphs // self.num_parts)


def num_edges(size: int, graph: GraphConfig) -> int:
    """Return the edges of one labelled instance's graph."""
    return size * (graph.row_neighbours + graph.witnesses + graph.column_neighbours)


def batch_shape(size: int, num_instances: int, graph: GraphConfig, training: TrainingConfig) -> BatchShape:
    """Return the largest batch of `num_instances` instances of one size."""
    edges = num_edges(size, graph)
    budget = {
        "graphs": training.batch_size,
        "nodes": training.max_nodes // (2 * size),
        "edges": training.max_edges // edges,
    }[training.batch_by]
    count = max(1, min(budget, num_instances))  # one that is above the budget forms a batch of its own
    return BatchShape(count, count * edges, min(training.accumulate, count))


class Kept(NamedTuple):
    """Bytes of tensors that are kept, by what they have one row for."""

    row_edge: int = 0  # entry of a row's list
    column_edge: int = 0
    witness: int = 0
    node: int = 0  # pair of a row and a column
    graph: int = 0

    def plus(self, other: Self, times: int = 1) -> "Kept":
        """Return the sum with several times another one."""
        return Kept(*(one + times * more for one, more in zip(self, other, strict=True)))


def kept_bytes_per_edge(config: LapConfig) -> float:
    """Return the bytes that autograd keeps for the backward pass, per edge of a batch."""
    return kept_bytes(SAMPLE_SIZE, config.graph, config.model, config.loss) / num_edges(SAMPLE_SIZE, config.graph)


def kept_bytes(size: int, graph: GraphConfig, model: ModelConfig, loss: WarmStartLossConfig) -> int:
    """Return the bytes that autograd keeps of a training step over one instance on a CPU, in 32-bit precision."""
    has_witnesses = graph.witnesses > 0
    has_huber = loss.huber_weight > 0.0
    lists = Kept(INDEX, INDEX, INDEX, 2 * INDEX, (1 + has_huber) * INDEX)
    kept = lists.plus(_kept_of_dual(model.dual, has_witnesses))
    of_round = _kept_of_round(has_huber, has_witnesses)
    kept = kept.plus(of_round, model.dual.rounds if loss.round_discount > 0.0 else 1)
    edges = kept.row_edge * graph.row_neighbours + kept.column_edge * graph.column_neighbours
    return size * (edges + kept.witness * graph.witnesses + kept.node) + kept.graph


def _kept_of_round(has_huber: bool, has_witnesses: bool) -> Kept:
    """Count what the loss of one round keeps."""
    node = 2 * FLAG + (5 + 2 * has_witnesses + 3 * has_huber) * FLOAT
    return Kept(FLOAT + FLAG, 2 * (FLOAT + FLAG), 2 * FLOAT, node)


def _kept_of_dual(config: DualNetworkConfig, has_witnesses: bool) -> Kept:
    heads = config.heads
    sweep = Kept(3 * FLOAT, 3 * FLOAT, 0, 6 * FLOAT, 4 * FLOAT)
    edge = (5 + 4 * heads) * FLOAT + 2 * FLAG
    node = (22 + has_witnesses + 4 * config.width + 4 * config.hidden + 22 * heads) * FLOAT + 3 * FLAG
    return Kept().plus(sweep, config.sweeps).plus(Kept(edge, edge, FLOAT, node, 2 * heads * FLOAT), config.rounds)


def predict_step_bytes(kept_per_edge: float, shape: BatchShape, size: int, graph: GraphConfig) -> int:
    """Return what a training step takes above the process itself."""
    return round(KEPT_FACTOR * kept_per_edge * shape.graphs_at_once * num_edges(size, graph))


def predict_matrix_bytes(size: int) -> int:
    """Return what a preparation or an evaluation of one size takes above the process itself."""
    return PEAK_MATRICES * 8 * size**2


def predict_peak_bytes(config: LapConfig, name: str, kept_per_edge: float, num_instances: int) -> int:
    """Return what a training step of a stage takes above the process itself, or one that a search tries for it."""
    size, training = config.progression[name].size, config.training_for(name)
    if (searched := training.search_bytes()) is not None:
        return searched
    shape = batch_shape(size, num_instances, config.graph, training)
    return predict_step_bytes(kept_per_edge, shape, size, config.graph)


def job_memory(config: LapConfig, planned: PlannedStage, *, has_gpu: bool) -> str:
    """Return what a stage's job asks of the host's memory, with headroom, as `resources` has it: 6G."""
    names = members(planned)
    if names and has_gpu:
        peak = GPU_PROCESS_BYTES
    elif names:
        kept = kept_bytes_per_edge(config)
        peak = max(predict_peak_bytes(config, name, kept, config.progression[name].train) for name in names)
    elif planned.stage == EVALUATION:
        peak = max(predict_matrix_bytes(config.progression[name].size) for name in config.chosen())
    else:
        peak = predict_matrix_bytes(planned.config["size"])
    mib = JOB_HEADROOM * (peak + PROCESS_BYTES) / MIB
    return format_memory(max(SMALLEST_JOB_MIB, -(-int(mib) // 1024) * 1024))
