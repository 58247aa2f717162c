"""Compare batches and training steps of an experiment with those of others, on the same graphs.

Batches of samples, packed and one by one, are compared with those of PyG's loader, by the time of an epoch, order and
all; a step with a bare loop and with Lightning's Trainer.

The bare loop of PyTorch clips, saves and logs nothing, over batches that lie ready or come from PyG's loader; the
Trainer has neither logger nor checkpoints. kdgat does all that it does by default: packed samples, means of what is
logged, a check of every loss, progress, a checkpoint a minute. Times are processor times, the first steps left out.
Sides take turns; ratios are medians of turns with their quartiles.

Run: OMP_NUM_THREADS=1 python benchmarks/training_overhead.py [--seconds 1] [--turns 9] [--batch-sizes 32 128 256]
"""

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GAT, GIN, global_add_pool

from kdgat.experiment.samples import Samples, write_samples
from kdgat.stage import RunDirectory
from kdgat.training import GraphSource, TrainingConfig
from kdgat.training.fit import fit

NUM_FEATURES = 16
NUM_NODES = 20
NUM_BATCHES = 30  # of an epoch that trains nothing
WARM_UP = 3  # steps that are not counted
MOST_STEPS = 400
NETWORKS: dict[str, Callable[[], Any]] = {
    "GIN, hidden 32": lambda: GIN(NUM_FEATURES, 32, 3, dropout=0.1),  # that of `kdgat new`
    "GAT, hidden 64": lambda: GAT(NUM_FEATURES, 64, 3, heads=4, dropout=0.1),
}


def random_graphs(number: int, num_nodes: int) -> list[Data]:
    """Return graphs shaped as molecules: a ring with some bridges, features of nodes and edges, a target."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(number):
        size = int(torch.randint(num_nodes // 2, num_nodes * 3 // 2 + 1, (1,), generator=generator))
        ring = torch.stack([torch.arange(size), torch.arange(size).roll(-1)])
        bridges = torch.randint(0, size, (2, size // 8), generator=generator)
        edge_index = torch.cat([ring, bridges, ring.flip(0), bridges.flip(0)], 1)
        x = torch.randn(size, NUM_FEATURES, generator=generator)
        edge_attr = torch.randn(edge_index.shape[1], 4, generator=generator)
        found.append(Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=x[:, :2].prod(1).sum().view(1)))
    return found


class Clock:
    """Processor times at which steps began."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def note(self) -> None:
        """Note that a step begins."""
        self.times.append(time.process_time())

    def per_step(self) -> float:
        """Return the mean seconds of a step."""
        return (self.times[-1] - self.times[WARM_UP]) / (len(self.times) - 1 - WARM_UP)


class Regression(LightningModule):
    """A network of PyG over whole graphs."""

    def __init__(self, network: str) -> None:
        super().__init__()
        self.clock = Clock()
        self.encoder = NETWORKS[network]()
        self.head = nn.Linear(self.encoder.out_channels, 1)

    def error(self, batch: Any) -> Tensor:
        """Return the mean squared error of a batch."""
        pooled = global_add_pool(self.encoder(batch.x, batch.edge_index), batch.batch, len(batch.y))
        return nn.functional.mse_loss(self.head(pooled).squeeze(1), batch.y)

    def training_step(self, batch: Any) -> Tensor:
        """Return the loss."""
        self.clock.note()
        loss = self.error(batch)
        self.log("train_loss", loss.detach(), batch_size=len(batch.y))
        return loss

    def validation_step(self, batch: Any) -> None:
        """Log what the best epoch is chosen by."""
        self.log("validation_loss", self.error(batch), batch_size=len(batch.y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the same optimizer for all sides."""
        return torch.optim.AdamW(self.parameters(), fused=True)


class Ready(GraphSource):
    """Batches that were made before."""

    def __init__(self, source: GraphSource, batches: list[Any]) -> None:
        super().__init__(source.store, source.graph_sizes, source.limit, source.seed, source.shuffle)
        self._batches, self._given = batches, 0

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Return the next batch."""
        self._given += 1
        return self._batches[self._given - 1]


def train_bare(module: Regression, batches: Iterable[Any]) -> None:
    """Train by a loop that logs and saves nothing."""
    optimizer = module.configure_optimizers()
    module.train()
    for batch in batches:
        module.clock.note()
        module.error(batch).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def train_by_kdgat(module: Regression, samples: Samples, batch_size: int, ready: list[Any] | None) -> None:
    """Train as a stage of an experiment does."""
    config = TrainingConfig(max_epochs=1, batch_size=batch_size, accelerator="cpu")
    train, validation = (samples.source(config, 0, shuffle=shuffle) for shuffle in (True, False))
    validation.chosen = validation.chosen[:batch_size]
    with tempfile.TemporaryDirectory() as folder:
        source = train if ready is None else Ready(train, ready)
        fit(module, source, validation, config, RunDirectory(Path(folder)), seed=0)


def train_by_trainer(module: Regression, graphs: list[Data], batch_size: int) -> None:
    """Train by Lightning's Trainer, stripped of what can be switched off."""
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        plugins=[LightningEnvironment()],
    )
    trainer.fit(module, DataLoader(graphs, batch_size, shuffle=True), DataLoader(graphs[:batch_size], batch_size))


def compare_batches(num_nodes: int, batch_size: int, turns: int, folder: Path) -> None:
    """Print how long batches take, for graphs and batches of these sizes."""
    graphs = random_graphs(NUM_BATCHES * batch_size, num_nodes)

    def of_samples(name: str, collate: Any) -> Callable[[], Iterable[Any]]:
        write_samples(folder / name, graphs, collate)
        source = Samples(folder / name, collate).source(TrainingConfig(batch_size=batch_size), 0, shuffle=True)
        return lambda: (source.gather(indices) for indices in source.plan(0))

    sides: dict[str, Callable[[], Iterable[Any]]] = {
        "PyG's loader": lambda: DataLoader(graphs, batch_size, shuffle=True),
        "packed": of_samples("packed", None),
        "one by one": of_samples("single", Batch.from_data_list),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, batches in sides.items():
            began = time.process_time()
            for _ in batches():
                pass
            times[name].append((time.process_time() - began) / NUM_BATCHES)
    print_times(f"{batch_size} graphs of {num_nodes} nodes, batches alone", times, [np.array(times["PyG's loader"])])


def compare(network: str, batch_size: int, seconds: float, turns: int, folder: Path) -> None:
    """Print the sides of one network and batch size."""
    some = random_graphs(8 * batch_size, NUM_NODES)
    probe = Regression(network)
    train_bare(probe, DataLoader(some, batch_size))
    num_steps = min(MOST_STEPS, WARM_UP + 2 + int(seconds / probe.clock.per_step()))
    graphs = random_graphs(num_steps * batch_size, NUM_NODES)
    write_samples(folder / "samples", graphs, None)
    samples = Samples(folder / "samples")
    ready = list(DataLoader(graphs, batch_size, shuffle=True))
    sides: dict[str, Callable[[Regression], None]] = {
        "bare, batches ready": lambda module: train_bare(module, ready),
        "kdgat, batches ready": lambda module: train_by_kdgat(module, samples, batch_size, ready),
        "bare, PyG's loader": lambda module: train_bare(module, DataLoader(graphs, batch_size, shuffle=True)),
        "kdgat, packed samples": lambda module: train_by_kdgat(module, samples, batch_size, None),
        "Trainer, PyG's loader": lambda module: train_by_trainer(module, graphs, batch_size),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, train in sides.items():
            module = Regression(network)
            train(module)
            times[name].append(module.clock.per_step())
    bare = [np.array(times[name]) for name in list(sides)[::2][:2]]
    print_times(f"{network}, {batch_size} graphs of {NUM_NODES} nodes, {num_steps} steps", times, bare)


def print_times(title: str, times: Mapping[str, list[float]], others: Sequence[NDArray[np.float64]]) -> None:
    """Print the median time of each side, and its ratios to others."""
    print(title)
    for name, found in times.items():
        ratios = "".join(f"  {describe(np.array(found) / other):20}" for other in others)
        print(f"  {name:24}{np.median(found) * 1e3:9.3f} ms{ratios}")


def describe(ratios: NDArray[np.float64]) -> str:
    """Return the median and the quartiles."""
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Compare batches of small and larger graphs, and steps of each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[32, 128, 256])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for num_nodes in (NUM_NODES, 10 * NUM_NODES):
        for batch_size in arguments.batch_sizes:
            with tempfile.TemporaryDirectory() as folder:
                compare_batches(num_nodes, batch_size, arguments.turns, Path(folder))
    print(f"{'':38}over bare, batches ready / over bare, PyG's loader")
    for network in NETWORKS:
        for batch_size in arguments.batch_sizes:
            with tempfile.TemporaryDirectory() as folder:
                compare(network, batch_size, arguments.seconds, arguments.turns, Path(folder))


if __name__ == "__main__":
    main()
