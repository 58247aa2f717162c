"""Windows a second of a whole `fit` on a GPU, taken step by step and by recorded steps, both in one run.

An epoch is timed from its plan to the next one's, with the device's work done; the first ones record their steps and
choose kernels, and are given apart. `--profile` prints where the host spends the recorded epochs.

    python -m benchmarks.gpu_training [--batches 128 512 2048] [--epochs 12] [--profile]
"""

import argparse
import cProfile
import logging
import pstats
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from kdgat.gpu.networks import NETWORKS, random_windows
from kdgat.graphs import GraphColumns
from kdgat.stage import RunDirectory, StageSpec
from kdgat.training import GraphSource, TrainingConfig, seed_everything
from kdgat.training.fit import fit

NUM_WINDOWS = 16384
SETTLED = 4  # epochs before, in which most sizes of batches have been recorded


class Timed(GraphSource):
    """Notes when each epoch is planned."""

    began: list[float]

    def plan(self, epoch: int) -> Sequence[NDArray[np.int64]]:
        """Return the batches of an epoch."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.began.append(time.perf_counter())
        return super().plan(epoch)


def epoch_seconds(
    network: str, columns: GraphColumns, batch_size: int, epochs: int, capture: bool, is_profiled: bool
) -> list[float]:
    """Train without checkpoints in between; return the seconds of the epochs."""
    config = TrainingConfig(
        max_epochs=epochs, batch_size=batch_size, capture=capture, monitor="train_loss", patience=None,
        checkpoint_interval_s=1e6, checkpoint_margin_s=0.0,
    )  # fmt: skip
    seed_everything(0)
    module = NETWORKS[network].make(0.1)
    source = Timed.of(columns, config, 0, shuffle=True)
    assert isinstance(source, Timed)
    source.began = []
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder) / "run").create(StageSpec(family="can", stage="normal", seed=0))
        profiler = cProfile.Profile()
        if is_profiled:
            profiler.enable()
        fit(module, source, None, config, directory, 0)
        profiler.disable()
    if is_profiled:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    return np.diff(source.began).tolist()


def main() -> None:
    """Print a table for benchmarks/README.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--networks", nargs="+", default=["GAT large", "VGAE large"])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--windows", type=int, default=NUM_WINDOWS)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    columns = random_windows(options.windows)
    print("| a fit | batch | steps | windows/s, settled | first epoch, s |\n|---|---|---|---|---|", flush=True)
    for network in options.networks:
        for batch_size in options.batches:
            for capture in (False, True):
                seconds = epoch_seconds(
                    network, columns, batch_size, options.epochs, capture, options.profile and capture
                )
                rate = options.windows / statistics.median(seconds[SETTLED:])
                how = "recorded" if capture else "one by one"
                row = f"| {network} | {batch_size} | {how} | {rate:,.0f} | {seconds[0]:.1f} |"
                print(row, " ".join(f"{one:.2f}" for one in seconds), flush=True)


if __name__ == "__main__":
    main()
