"""How long the stages of a run take, and which of them fit into one job.

Rates of a device are seconds per training step and per byte that autograd keeps of it; `kdgat lap analyze --memory
--json FILE` measures them, and `kdgat plan lap --measured FILE` uses what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field

from kdgat.base import Config, UserError, write_json_atomically
from kdgat.base.kept import read_kept
from kdgat.lap.config import LapConfig
from kdgat.lap.instances.files import Counts, count_size
from kdgat.lap.names import PREPARE
from kdgat.lap.plan import members
from kdgat.lap.training.memory import (
    PROCESS_BYTES,
    batch_shape,
    kept_bytes_per_edge,
    num_edges,
    predict_matrix_bytes,
    predict_peak_bytes,
)
from kdgat.run import EVALUATION, PlannedStage

SCHEMA_VERSION: Final = 1
USABLE: Final = 0.95  # of a job's walltime: the rest is starting, saving and leaving
# One instance generated, solved and made a graph on one CPU core, seconds = COST * (n / 1024) ** POWER; measured.
PREPARE_S, PREPARE_POWER = 0.08, 2.05
# One instance solved once by an average method of the evaluation, likewise.
SOLVE_S, SOLVE_POWER = 0.05, 2.2


class Rates(Config):
    """What a device takes for training steps."""

    schema_version: int = SCHEMA_VERSION
    device: str
    is_measured: bool
    step_s: float = Field(ge=0.0, description="of every step, whatever its size")
    byte_s: float = Field(gt=0.0, description="for each byte that autograd keeps of a step")


# Of a CPU core: measured, by `kdgat lap analyze --memory`. Of a GPU: an H100 needs a tenth of a
# second to start the kernels of a step, whatever its size (docs/gpu.md); beside it ten times a core, less than small
# GPUs do.
RATES: Final = {
    "cpu": Rates(device="one CPU core", is_measured=True, step_s=0.005, byte_s=2.2e-9),
    "gpu": Rates(device="a GPU, not measured", is_measured=False, step_s=0.1, byte_s=2.2e-10),
}


def rates_here() -> Rates:
    """Return the rates of this machine's GPU where it has one of NVIDIA's, else of a core; torch is not asked."""
    return RATES["gpu" if any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"]


@dataclass(frozen=True)
class Forecast:
    """What one planned stage is expected to take."""

    name: str
    stages: tuple[str, ...]  # of the progression; none for preparation and evaluation
    num_instances: int
    num_graphs: int | None  # in a batch, of the largest stage in it
    num_steps: int | None
    peak_bytes: int
    seconds: float

    @property
    def is_training(self) -> bool:
        """Return whether it trains."""
        return bool(self.stages)


def forecast(
    config: LapConfig, plan: Sequence[PlannedStage], rates: Rates, counts: Counts | None = None
) -> list[Forecast]:
    """Predict memory and time of every planned stage, in order.

    Args:
        config, plan: of the run.
        rates: of the device that trains.
        counts: size -> split -> instances, where they are read from files; None: as the configuration generates them.
    """
    kept = kept_bytes_per_edge(config)
    return [_forecast(config, planned, kept, rates, counts) for planned in plan]


def _forecast(config: LapConfig, planned: PlannedStage, kept: float, rates: Rates, counts: Counts | None) -> Forecast:
    names = tuple(members(planned))
    if planned.stage == EVALUATION:
        return _evaluation(config, planned, counts)
    if planned.stage == PREPARE:
        return _preparation(config, planned, counts)
    seconds, peak, total_steps, total_instances, graphs = 0.0, 0, 0, 0, 0
    for name in names:
        size, training = config.progression[name].size, config.training_for(name)
        number = instances(config, name, counts)
        shape = batch_shape(size, number["train"], config.graph, training)
        steps = training.max_epochs * -(-number["train"] // shape.num_graphs)
        edges = num_edges(size, config.graph)
        trained = training.max_epochs * number["train"] * edges * kept * rates.byte_s
        validated = training.max_epochs * number["validation"] * edges * kept * rates.byte_s / 3.0  # forward alone
        seconds += steps * shape.num_parts * rates.step_s + trained + validated
        peak = max(peak, predict_peak_bytes(config, name, kept, number["train"]))
        total_steps, total_instances = total_steps + steps, total_instances + number["train"]
        graphs = shape.num_graphs
    return Forecast(planned.name, names, total_instances, graphs, total_steps, peak + PROCESS_BYTES, seconds)


def _preparation(config: LapConfig, planned: PlannedStage, counts: Counts | None) -> Forecast:
    size: int = planned.config["size"]
    name = next(name for name in config.chosen() if config.progression[name].size == size)
    total = sum(instances(config, name, counts).values())
    seconds = total * PREPARE_S * (size / 1024) ** PREPARE_POWER
    return Forecast(planned.name, (), total, None, None, predict_matrix_bytes(size) + PROCESS_BYTES, seconds)


def _evaluation(config: LapConfig, planned: PlannedStage, counts: Counts | None) -> Forecast:
    chosen = config.chosen()
    evaluation = config.evaluation
    calls = (evaluation.repeats + evaluation.warm_ups) * (len(evaluation.methods) + len(chosen))
    total, seconds, peak = 0, 0.0, 0
    for name in chosen:
        size = config.progression[name].size
        tested = instances(config, name, counts)["test"]
        timed = min(tested, evaluation.measured_instances * len(config.data.families))
        seconds += (timed * calls + tested) * SOLVE_S * (size / 1024) ** SOLVE_POWER
        total, peak = total + tested, max(peak, predict_matrix_bytes(size))
    return Forecast(planned.name, (), total, None, None, peak + PROCESS_BYTES, seconds)


def instances(config: LapConfig, name: str, counts: Counts | None) -> dict[str, int]:
    """Return how many instances a stage has, by split: those of its size in the files, or as configured."""
    stage = config.progression[name]
    if counts is None:
        return {"train": stage.train, "validation": stage.validation, "test": stage.test}
    return counts[stage.size]


def count_files(config: LapConfig) -> Counts:
    """Count the instances of every chosen size in the files of `data.source`.

    Raises:
        UserError: naming a file that is missing, or has none of a size.
    """
    sizes = [config.progression[name].size for name in config.chosen()]
    return {size: count_size(Path(config.data.source or ""), size) for size in sizes}


def pack(forecasts: Sequence[Forecast], walltime_s: int) -> list[list[str]]:
    """Put consecutive training stages of one seed into as few jobs as there is time for; a longer one is alone."""
    jobs: list[list[str]] = []
    left_s = 0.0
    for one in forecasts:
        if jobs and one.seconds <= left_s:
            jobs[-1] += one.stages
        else:
            jobs.append([*one.stages])
            left_s = USABLE * walltime_s
        left_s -= one.seconds
    return jobs


def fit_rates(device: str, measured: Sequence[tuple[int, float]]) -> Rates:
    """Fit seconds per step and per byte kept to measurements (bytes, seconds) of one device, by least squares.

    Relative errors count, so that small and large steps weigh alike.
    """
    kept, seconds = (np.array(column, np.float64) for column in zip(*measured, strict=True))
    if len(measured) > 1:
        equations = np.stack([1.0 / seconds, kept / seconds], axis=1)
        step_s, byte_s = np.linalg.lstsq(equations, np.ones(len(kept)), rcond=None)[0].tolist()
        if step_s >= 0.0 and byte_s > 0.0:
            return Rates(device=device, is_measured=True, step_s=step_s, byte_s=byte_s)
    return Rates(device=device, is_measured=True, step_s=0.0, byte_s=float((seconds / kept).max()))


def write_rates(path: Path, rates: Rates) -> None:
    """Write measured rates as JSON."""
    write_json_atomically(path, rates.model_dump(mode="json"))


def read_rates(path: Path) -> Rates:
    """Read measured rates; UserError if the file holds none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: write it by `kdgat lap analyze --memory --json {path}`") from None
    return read_kept(Rates, content, path, f"write it again by `kdgat lap analyze --memory --json {path}`")
