"""How much memory a training step takes: counted from the tensors that autograd keeps, and measured.

The count is made on a small graph and scales with the edges of a batch, because every tensor of a step has one row per
edge, row or column. What a step takes beside that (gradients on their way, buffers of the allocator) is a factor that
was measured by `kdgat lap analyze --memory`, which shows prediction and measurement beside each other.
"""

import multiprocessing
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.cluster.resources import format_memory
from kdgat.graphs.batches import TensorColumns
from kdgat.graphs.columns import GraphColumns
from kdgat.lap.config import LapConfig, load_config
from kdgat.lap.errors import LapError
from kdgat.lap.graphs import COST, EDGE_FEATURES, IS_COLUMN, NODE_FEATURES, PRESENT, SCHEMA, WITNESS, GraphConfig
from kdgat.lap.models import make_model
from kdgat.lap.names import EVALUATION
from kdgat.lap.objective import WarmStartObjective
from kdgat.lap.plan import members
from kdgat.run.plan import PlannedStage
from kdgat.training.averages import Averages
from kdgat.training.config import TrainingConfig
from kdgat.training.device import make_fabric, make_optimizer
from kdgat.training.random_state import seed_everything

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MIB: Final = 1 << 20
SAMPLE_SIZE: Final = 128  # rows of the graph that is counted
# Measured by `kdgat lap analyze --memory` on a CPU: peak above the start over the tensors kept, and the start itself.
KEPT_FACTOR: Final = 2.5
PROCESS_BYTES: Final = 600 * MIB  # torch, torch-geometric and lightning, loaded
GPU_PROCESS_BYTES: Final = 3072 * MIB  # of the host, with CUDA's libraries
# A preparation or an evaluation holds this many matrices of n x n numbers of 8 bytes at its peak.
PEAK_MATRICES: Final = 8
JOB_HEADROOM: Final = 1.5  # of what a job asks for above what is predicted
SMALLEST_JOB_MIB: Final = 2048


class MeasurementError(LapError):
    """A stage could not be measured; the text says why."""


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


@dataclass(frozen=True)
class Measurement:
    """One size, measured in a process of its own."""

    size: int
    num_graphs: int
    num_edges: int
    kept_bytes: int  # counted, of the graphs that are in the model at one time
    start_bytes: int  # memory of the process before the first step; 0 on a GPU
    peak_bytes: int  # of the process (CPU) or of the allocator (GPU)
    step_s: float  # seconds per step, median
    num_parts: int = 1  # that a batch goes through the model in
    on_gpu: bool = False


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


def random_columns(size: int, graph: GraphConfig, seed: int = 0) -> GraphColumns:
    """Return a graph of random neighbours and costs: a step over it takes what one over a real instance takes."""
    generator = np.random.default_rng(seed)
    parts = []
    for width, first_source, first_node in (
        (graph.row_neighbours + graph.witnesses, size, 0),
        (graph.column_neighbours, 0, size),
    ):
        sources = np.sort(generator.integers(0, size, (size, width)), axis=1) + first_source
        nodes = np.repeat(np.arange(first_node, first_node + size), width)
        parts.append(np.stack([sources.reshape(-1), nodes]))
    edge_index = np.concatenate(parts, axis=1).astype(np.int32)
    edge_attr = np.zeros((edge_index.shape[1], len(EDGE_FEATURES)), np.float32)
    edge_attr[:, COST] = generator.random(len(edge_attr))
    edge_attr[:, PRESENT] = 1.0
    of_rows = edge_attr[: size * (graph.row_neighbours + graph.witnesses), PRESENT]
    of_rows.reshape(size, -1)[:, graph.row_neighbours :] = WITNESS
    x = np.zeros((2 * size, len(NODE_FEATURES)), np.float32)
    x[size:, IS_COLUMN] = 1.0
    return GraphColumns(
        SCHEMA,
        node_ptr=np.array([0, len(x)], np.int64),
        edge_ptr=np.array([0, edge_index.shape[1]], np.int64),
        x=x,
        edge_index=edge_index,
        edge_attr=edge_attr,
        instance=np.zeros(1, np.int64),
        size=np.full(1, size, np.int32),
    )


def kept_bytes_per_edge(config: LapConfig) -> float:
    """Count the bytes that autograd keeps for the backward pass, per edge of a batch."""
    objective = WarmStartObjective(make_model(config.model), config.loss)
    batch = TensorColumns.from_columns(random_columns(SAMPLE_SIZE, config.graph)).gather(np.zeros(1, np.int64))
    return count_kept_bytes(objective, batch) / batch.edge_attr.shape[0]


def count_kept_bytes(objective: WarmStartObjective, batch: Batch) -> int:
    """Count the bytes of all tensors that autograd keeps of one training step, each storage once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in objective.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with Averages().listen(objective), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective.training_step(batch)
    del loss  # until here every storage is alive, so that no address stands for two
    return sum(kept.values())


def predict_step_bytes(kept_per_edge: float, shape: BatchShape, size: int, graph: GraphConfig) -> int:
    """Return what a training step takes above the process itself."""
    return round(KEPT_FACTOR * kept_per_edge * shape.graphs_at_once * num_edges(size, graph))


def predict_matrix_bytes(size: int) -> int:
    """Return what a preparation or an evaluation of one size takes above the process itself."""
    return PEAK_MATRICES * 8 * size**2


def predict_peak_bytes(config: LapConfig, name: str, kept_per_edge: float, num_instances: int) -> int:
    """Return what a training step of a stage takes above the process itself."""
    size, training = config.progression[name].size, config.training_for(name)
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
        peak = predict_matrix_bytes(int(planned.scale))
    mib = JOB_HEADROOM * (peak + PROCESS_BYTES) / MIB
    return format_memory(max(SMALLEST_JOB_MIB, -(-int(mib) // 1024) * 1024))


def measure_step(config: LapConfig, name: str, num_instances: int, accelerator: str, num_steps: int = 5) -> Measurement:
    """Measure training steps of a stage in a process of its own, whose peak nothing else has raised.

    Raises:
        MeasurementError: if that process ended without a word, for instance killed for lack of memory.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_measure, args=(sender, config.model_dump(mode="json"), name, num_instances, accelerator, num_steps)
    )
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        raise MeasurementError(
            f"{name}: the process that measured it ended with status {process.exitcode} (-9: killed, as for lack of "
            "memory): lower training.max_edges, or raise training.accumulate"
        ) from None
    process.join()
    if isinstance(answer, str):
        raise MeasurementError(f"{name}: {answer}")
    measured: Measurement = answer
    return measured


def _measure(
    sender: "Connection", content: dict[str, Any], name: str, num_instances: int, accelerator: str, num_steps: int
) -> None:
    try:
        sender.send(_steps(load_config(content), name, num_instances, accelerator, num_steps))
    except (RuntimeError, ValueError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError
        sender.send(f"{type(error).__name__}: {error}")


def _steps(config: LapConfig, name: str, num_instances: int, accelerator: str, num_steps: int) -> Measurement:
    size = config.progression[name].size
    training = config.training_for(name).model_copy(update={"accelerator": accelerator})
    shape = batch_shape(size, num_instances, config.graph, training)
    torch.set_num_threads(training.num_threads)
    fabric = make_fabric(training)
    on_gpu = fabric.device.type == "cuda"
    seed_everything(0)
    objective = WarmStartObjective(make_model(config.model), config.loss)
    columns = TensorColumns.from_columns(random_columns(size, config.graph))
    batch = columns.gather(np.zeros(shape.graphs_at_once, np.int64))  # the same graph several times
    kept = count_kept_bytes(objective, columns.gather(np.zeros(1, np.int64))) * shape.graphs_at_once
    del columns
    fabric.to_device(objective)
    raw_optimizer = make_optimizer(objective, training, fabric)
    _, optimizer = fabric.setup(objective, raw_optimizer)
    start = 0 if on_gpu else current_bytes()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(num_steps):
        began = time.perf_counter()
        for _ in range(shape.num_parts):
            on_device = fabric.to_device(batch)
            with Averages().listen(objective), fabric.autocast():
                loss = objective.training_step(on_device)
            fabric.backward(loss)
        optimizer.step()
        raw_optimizer.zero_grad(set_to_none=True)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_bytes()
    step_s = float(np.median(seconds[1:] or seconds))  # the first one compiles and allocates
    return Measurement(size, shape.num_graphs, shape.num_edges, kept, start, peak, step_s, shape.num_parts, on_gpu)


def current_bytes() -> int:
    """Return the memory of this process that is resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """Return the most memory of this process that was resident at a time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
