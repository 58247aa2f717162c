"""Training steps of a stage, measured beside what `kdgat.lap.training.memory` predicts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kdgat.base import UserError
from kdgat.graphs import GraphColumns, TensorColumns
from kdgat.lap.config import LapConfig
from kdgat.lap.graphs.bipartite import COST, EDGE_FEATURES, IS_COLUMN, NODE_FEATURES, PRESENT, SCHEMA, WITNESS
from kdgat.lap.models import make_model
from kdgat.lap.sections import GraphConfig
from kdgat.lap.training.memory import batch_shape
from kdgat.lap.training.objective import WarmStartObjective
from kdgat.training import seed_everything
from kdgat.training.measure import StepMeasurement, count_kept_bytes, measure_steps, run_alone


@dataclass(frozen=True)
class Measurement(StepMeasurement):
    """One size, measured in a process of its own."""

    num_graphs: int  # of a batch
    num_parts: int  # that a batch goes through the model in
    kept_bytes: int  # counted, of the graphs that are in the model at one time


def measure_step(config: LapConfig, name: str, num_instances: int, accelerator: str, num_steps: int = 5) -> Measurement:
    """Measure training steps of a stage in a process of its own.

    Raises:
        UserError: if that process could not, for instance for lack of memory.
    """
    try:
        return run_alone(measure_here, config.model_dump(mode="json"), name, num_instances, accelerator, num_steps)
    except UserError as error:
        raise UserError(f"{name}: {error}: lower training.max_edges, or raise training.accumulate") from None


def measure_here(
    content: dict[str, Any], name: str, num_instances: int, accelerator: str, num_steps: int
) -> Measurement:
    """Measure training steps of a stage of a configuration, as plain data, in this process."""
    config = LapConfig.from_data(content)
    size = config.progression[name].size
    training = config.training_for(name).model_copy(update={"accelerator": accelerator})
    shape = batch_shape(size, num_instances, config.graph, training)
    seed_everything(0)
    objective = WarmStartObjective(make_model(config.model), config.loss)
    columns = TensorColumns.from_columns(random_columns(size, config.graph))
    batch = columns.gather(np.zeros(shape.graphs_at_once, np.int64))  # the same graph several times
    kept = count_kept_bytes(objective, columns.gather(np.zeros(1, np.int64))) * shape.graphs_at_once
    del columns
    found = measure_steps(objective, batch, training, num_steps=num_steps, num_parts=shape.num_parts)
    return Measurement(
        found.start_bytes, found.peak_bytes, found.step_s, found.on_gpu, shape.num_graphs, shape.num_parts, kept
    )


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
