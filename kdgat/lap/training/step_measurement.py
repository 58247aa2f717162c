"""Training steps of a stage, measured beside what `kdgat.lap.training.memory` predicts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kdgat.graphs.batches import TensorColumns
from kdgat.lap.config import LapConfig
from kdgat.lap.models import make_model
from kdgat.lap.training.memory import batch_shape, random_columns
from kdgat.lap.training.objective import WarmStartObjective
from kdgat.training.measure import (
    MeasurementError,
    StepMeasurement,
    count_kept_bytes,
    measure_steps,
    run_alone,
)
from kdgat.training.random_state import seed_everything


@dataclass(frozen=True)
class Measurement(StepMeasurement):
    """One size, measured in a process of its own."""

    num_graphs: int  # of a batch
    num_parts: int  # that a batch goes through the model in
    kept_bytes: int  # counted, of the graphs that are in the model at one time


def measure_step(config: LapConfig, name: str, num_instances: int, accelerator: str, num_steps: int = 5) -> Measurement:
    """Measure training steps of a stage in a process of its own.

    Raises:
        MeasurementError: if that process could not, for instance for lack of memory.
    """
    try:
        return run_alone(measure_here, config.model_dump(mode="json"), name, num_instances, accelerator, num_steps)
    except MeasurementError as error:
        raise MeasurementError(f"{name}: {error}: lower training.max_edges, or raise training.accumulate") from None


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
