"""What the stages of a run take of memory and time, and which of them fit into one job.

Rates of a device are seconds per training step and per byte that autograd keeps of it; `kdgat lap analyze --memory
--json FILE` measures them, and `kdgat plan lap --measured FILE` uses what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import Field

from kdgat.base import MIB, Config, UserError
from kdgat.base.kept import read_kept
from kdgat.cluster import format_memory
from kdgat.lap.config import LapConfig
from kdgat.lap.instances.files import Counts, count_size
from kdgat.lap.plan import members
from kdgat.lap.training.memory import kept_bytes, stage_batch, step_bytes
from kdgat.run import EVALUATION, PlannedStage

SCHEMA_VERSION: Final = 1
PROCESS_BYTES: Final = 600 * MIB  # torch, torch-geometric and lightning, loaded; measured
GPU_PROCESS_BYTES: Final = 3672 * MIB  # of the host, with CUDA's libraries
# A preparation or an evaluation holds this many matrices of n x n numbers of 8 bytes at its peak.
PEAK_MATRICES: Final = 8
JOB_HEADROOM: Final = 1.5  # of what a job asks for above what is predicted
SMALLEST_JOB_MIB: Final = 2048
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
    return [_forecast(config, planned, rates, counts) for planned in plan]


def _forecast(config: LapConfig, planned: PlannedStage, rates: Rates, counts: Counts | None) -> Forecast:
    names = tuple(members(planned))
    peak = stage_bytes(config, planned, counts)
    if not names:
        total, seconds = (_evaluation if planned.stage == EVALUATION else _preparation)(config, planned, counts)
        return Forecast(planned.name, (), total, None, None, peak, seconds)
    seconds, total_steps, total_instances, graphs = 0.0, 0, 0, 0
    for name in names:
        number, max_epochs = instances(config, name, counts), config.training_for(name).max_epochs
        batch = stage_batch(config, name, number["train"])
        steps = max_epochs * -(-number["train"] // batch.num_graphs)
        passes = max_epochs * (number["train"] + number["validation"] / 3.0)  # validation goes forward alone
        kept = passes * kept_bytes(config.progression[name].size, config)
        seconds += steps * batch.num_parts * rates.step_s + kept * rates.byte_s
        total_steps, total_instances = total_steps + steps, total_instances + number["train"]
        graphs = batch.num_graphs
    return Forecast(planned.name, names, total_instances, graphs, total_steps, peak, seconds)


def _preparation(config: LapConfig, planned: PlannedStage, counts: Counts | None) -> tuple[int, float]:
    size: int = planned.config["size"]
    name = next(name for name in config.chosen() if config.progression[name].size == size)
    total = sum(instances(config, name, counts).values())
    return total, total * PREPARE_S * (size / 1024) ** PREPARE_POWER


def _evaluation(config: LapConfig, planned: PlannedStage, counts: Counts | None) -> tuple[int, float]:
    evaluation = config.evaluation
    calls = (evaluation.repeats + evaluation.warm_ups) * (len(evaluation.methods) + len(config.chosen()))
    total, seconds = 0, 0.0
    for name in config.chosen():
        tested = instances(config, name, counts)["test"]
        timed = min(tested, evaluation.measured_instances * len(config.data.families))
        seconds += (timed * calls + tested) * SOLVE_S * (config.progression[name].size / 1024) ** SOLVE_POWER
        total += tested
    return total, seconds


def stage_bytes(config: LapConfig, planned: PlannedStage, counts: Counts | None = None) -> int:
    """Return what the process of a stage takes, its steps or those that a search tries for it included."""
    if names := members(planned):
        largest = max(
            config.training_for(name).search_bytes()
            or step_bytes(config, name, instances(config, name, counts)["train"])
            for name in names
        )
    else:
        of_stage = [config.progression[name].size for name in config.chosen()]
        size = max(of_stage) if planned.stage == EVALUATION else planned.config["size"]
        largest = PEAK_MATRICES * 8 * size**2
    return largest + PROCESS_BYTES


def job_memory(config: LapConfig, planned: PlannedStage, *, has_gpu: bool) -> str:
    """Return what a stage's job asks of the host's memory, with headroom, as `resources` has it: 6G."""
    peak = GPU_PROCESS_BYTES if members(planned) and has_gpu else stage_bytes(config, planned)
    mib = JOB_HEADROOM * peak / MIB
    return format_memory(max(SMALLEST_JOB_MIB, -(-int(mib) // 1024) * 1024))


def instances(config: LapConfig, name: str, counts: Counts | None) -> dict[str, int]:
    """Return how many instances a stage has, by split: those of its size in the files, or as configured."""
    stage = config.progression[name]
    if counts is None:
        return {"train": stage.train, "validation": stage.validation, "test": stage.test}
    return counts[stage.size]


def count_files(config: LapConfig) -> Counts | None:
    """Count the instances of every chosen size in the files of `data.source`; None where they are generated.

    Raises:
        UserError: naming a file that is missing, or has none of a size.
    """
    if config.data.source is None:
        return None
    sizes = [config.progression[name].size for name in config.chosen()]
    return {size: count_size(Path(config.data.source), size) for size in sizes}


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


def read_rates(path: Path) -> Rates:
    """Read measured rates; UserError if the file holds none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: write it by `kdgat lap analyze --memory --json {path}`") from None
    return read_kept(Rates, content, path, f"write it again by `kdgat lap analyze --memory --json {path}`")
