"""Training steps of a stage, measured beside what `kdgat.lap.training.memory` predicts."""

import numpy as np

from kdgat.base import UserError
from kdgat.graphs import GraphColumns, TensorColumns
from kdgat.lap.config import LapConfig
from kdgat.lap.graphs.bipartite import COST, EDGE_FEATURES, IS_COLUMN, NODE_FEATURES, PRESENT, SCHEMA, WITNESS
from kdgat.lap.models import make_model
from kdgat.lap.sections import GraphConfig
from kdgat.lap.training.memory import stage_batch
from kdgat.lap.training.objective import WarmStartObjective
from kdgat.training import seed_everything
from kdgat.training.measure import StepMeasurement, measure_steps, run_alone


def measure_step(config: LapConfig, name: str, num_instances: int, num_steps: int) -> StepMeasurement:
    """Measure training steps of a stage in a process of its own.

    Raises:
        UserError: if that process could not, for instance for lack of memory.
    """
    try:
        return run_alone(measure_here, config, name, num_instances, num_steps)
    except UserError as error:
        raise UserError(f"{name}: {error}: lower training.max_edges, or raise training.accumulate") from None


def measure_here(config: LapConfig, name: str, num_instances: int, num_steps: int) -> StepMeasurement:
    """Measure training steps of a stage in this process."""
    shape = stage_batch(config, name, num_instances)
    seed_everything(0)
    objective = WarmStartObjective(make_model(config.model), config.loss)
    columns = TensorColumns.from_columns(random_columns(config.progression[name].size, config.graph))
    batch = columns.gather(np.zeros(shape.graphs_at_once, np.int64))  # the same graph several times
    del columns
    return measure_steps(objective, batch, config.training_for(name), num_steps=num_steps, num_parts=shape.num_parts)


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
