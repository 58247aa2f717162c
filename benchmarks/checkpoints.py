"""What checkpoints cost the CAN models in wall clock, written with fsync to a real disk.

    OMP_NUM_THREADS=1 python benchmarks/checkpoints.py [--directory DIR] [--steps 24] [--repeats 5]

Trains each model at the widths of both presets on graphs of the size of real windows, alternately without checkpoints
and with one after every second step, far more often than anybody wants them, so that their cost shows. Two answers
from the same runs: the time that `fit` itself measures from the snapshot to the rename (median), and the difference
between the runs. The share of training time at the default interval follows from the larger of the two. A smaller
batch than in training keeps the steps short; a checkpoint is the same.
"""

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from lightning import LightningModule
from models import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, make_windows
from numpy.typing import NDArray
from torch_geometric.data import Batch

from kdgat.can.config import CanConfig
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.models.convolution import count_parameters
from kdgat.can.training.objective import AutoencoderObjective, DetectionObjective
from kdgat.graphs import TensorColumns
from kdgat.stage import RunDirectory
from kdgat.training import Deadline, TrainingConfig
from kdgat.training.allocator import keep_freed_memory
from kdgat.training.fit import fit
from kdgat.training.source import StatelessSource

PRESETS = ("quick", "full")
BATCH = 32
STEPS_PER_CHECKPOINT = 2


class Windows(StatelessSource):
    """The same few batches again and again."""

    def __init__(self, windows: TensorColumns, num_steps: int) -> None:
        self.windows, self.num_steps = windows, num_steps

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch."""
        return [(np.arange(BATCH) + step * BATCH) % self.windows.num_graphs for step in range(self.num_steps)]

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Return one batch."""
        return self.windows.gather(indices)


@dataclass
class Observed(Deadline):
    """No deadline; keeps what it is told about checkpoints and steps."""

    checkpoints: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    def observe_checkpoint(self, seconds: float) -> None:
        """Keep how long a checkpoint took."""
        self.checkpoints.append(seconds)

    def observe_step(self, seconds: float) -> None:
        """Keep how long a step took."""
        self.steps.append(seconds)


@dataclass
class Run:
    """What one call of `fit` took, in seconds of wall clock, and the size of its newest checkpoint in bytes."""

    seconds: float
    observed: Observed
    num_bytes: int


def run(module: LightningModule, windows: TensorColumns, num_steps: int, every: int | None, folder: Path) -> Run:
    """Train for some steps and one step of validation."""
    config = TrainingConfig(
        max_epochs=1, batch_size=BATCH, accelerator="cpu", checkpoint_interval_s=1e9, checkpoint_every_steps=every
    )
    observed = Observed()
    with tempfile.TemporaryDirectory(dir=folder) as path:
        directory = RunDirectory(path)
        started = time.perf_counter()
        fit(module, Windows(windows, num_steps), Windows(windows, 1), config, directory, seed=0, deadline=observed)
        seconds = time.perf_counter() - started
        return Run(seconds, observed, (directory.path / directory.newest_checkpoint()).stat().st_size)


def measure(
    make: Callable[[], LightningModule], windows: TensorColumns, num_steps: int, repeats: int, folder: Path
) -> tuple[list[Run], list[Run]]:
    """Return runs without and with checkpoints, which took turns; both write the one at the end."""
    without, saving = [], []
    run(make(), windows, STEPS_PER_CHECKPOINT, None, folder)
    for _ in range(repeats):
        without.append(run(make(), windows, num_steps, None, folder))
        saving.append(run(make(), windows, num_steps, STEPS_PER_CHECKPOINT, folder))
    return without, saving


def models_of(config: CanConfig) -> dict[str, Callable[[], LightningModule]]:
    """Return what makes the large models of a configuration."""
    sizes = (NUM_NODE_FEATURES, NUM_EDGE_FEATURES)
    return {
        "GAT large": lambda: DetectionObjective(GraphAttentionNetwork(config.gat.large, *sizes)),
        "VGAE large": lambda: AutoencoderObjective(GraphAutoencoder(config.autoencoder.large, *sizes)),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(), help="where checkpoints go (default: here)")
    parser.add_argument("--steps", type=int, default=24, help="of each run")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("kdgat", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    keep_freed_memory()
    windows = make_windows(4 * BATCH)
    interval_s = TrainingConfig().checkpoint_interval_s
    print(f"checkpoints below {arguments.directory.absolute()}, one thread, batches of {BATCH} windows")
    header = ("preset, model", "parameters", "MB", "ms/step", "ms measured", "ms by difference", "ratio")
    share_header = f"share at {interval_s:.0f} s"
    print("{:20s}{:>12s}{:>8s}{:>9s}{:>13s}{:>18s}{:>7s}".format(*header) + f"{share_header:>15s}")
    for preset in PRESETS:
        config = CanConfig.from_preset(preset, {"data": {"dataset": "synthetic", "data_root": "."}})
        for name, make in models_of(config).items():
            without, saving = measure(make, windows, arguments.steps, arguments.repeats, arguments.directory)
            # The last one is written with or without.
            num_more = len(saving[0].observed.checkpoints) - len(without[0].observed.checkpoints)
            difference = statistics.median(
                (one.seconds - other.seconds) / num_more for other, one in zip(without, saving, strict=True)
            )
            ratio = statistics.median(one.seconds / other.seconds for other, one in zip(without, saving, strict=True))
            measured = statistics.median(seconds for one in saving for seconds in one.observed.checkpoints)
            step = statistics.median(seconds for one in without for seconds in one.observed.steps)
            share = max(measured, difference) / (interval_s + max(measured, difference))
            print(
                f"{f'{preset}, {name}':20s}{count_parameters(make()):12,d}{saving[0].num_bytes / 1e6:8.1f}"
                f"{step * 1e3:9.1f}{measured * 1e3:13.1f}{difference * 1e3:18.1f}{ratio:7.2f}{share:15.3%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
