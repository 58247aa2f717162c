"""A small real training that the restart tests run in child processes and kill there.

A GAT with dropout and batch norm on random graphs; the training source is a curriculum whose state moves with the
validation loss, so that a resume which forgets any of these ends with other weights.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, global_mean_pool

from kdgat.stage import RunDirectory
from kdgat.stage.outcome import EXIT_FINISHED, EXIT_PAUSED
from kdgat.training import Deadline, TrainingConfig, seed_everything
from kdgat.training.fit import FitResult, fit
from kdgat.training.weights import save_weights

SEED = 7
NUM_GRAPHS = 96
CONFIG = TrainingConfig(
    max_epochs=4, batch_size=8, learning_rate=5e-3, warmup_fraction=0.1, patience=None, checkpoint_interval_s=3600
)


def make_graphs(num_graphs: int, seed: int) -> list[Data]:
    """Draw graphs whose label depends on their features."""
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for _ in range(num_graphs):
        num_nodes = int(torch.randint(4, 9, (1,), generator=generator))
        x = torch.randn(num_nodes, 6, generator=generator)
        edge_index = torch.randint(0, num_nodes, (2, 3 * num_nodes), generator=generator)
        graphs.append(Data(x=x, edge_index=edge_index, y=(x[:, 0].mean() > 0).long().view(1)))
    return graphs


class GraphSource:
    """Plain source: the same graphs each epoch, in another order if it shuffles."""

    def __init__(self, graphs: list[Data], batch_size: int, seed: int, shuffle: bool) -> None:
        self.graphs, self.batch_size, self.seed, self.shuffle = graphs, batch_size, seed, shuffle

    def candidates(self, epoch: int) -> np.ndarray:
        return np.arange(len(self.graphs))

    def plan(self, epoch: int) -> list[np.ndarray]:
        indices = self.candidates(epoch)
        if self.shuffle:
            indices = np.random.default_rng([self.seed, epoch]).permutation(indices)
        return np.array_split(indices, -(-len(indices) // self.batch_size))

    def gather(self, indices: np.ndarray) -> Batch:
        sys.audit("kdgat.tests.gather", "step" if self.shuffle else "validation")
        return Batch.from_data_list([self.graphs[index] for index in indices])

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}

    def describe(self, epoch: int) -> dict[str, float]:
        return {}

    def on_epoch_end(self, epoch: int, metrics: dict[str, float]) -> None:
        pass


class CurriculumSource(GraphSource):
    """Source whose share of the graphs grows by an amount that depends on the validation loss."""

    def __init__(self, graphs: list[Data], batch_size: int, seed: int) -> None:
        super().__init__(graphs, batch_size, seed, shuffle=True)
        self.share = 0.5
        self.difficulty = np.linspace(0.0, 1.0, len(graphs))

    def candidates(self, epoch: int) -> np.ndarray:
        return np.argsort(self.difficulty, kind="stable")[: int(self.share * len(self.graphs))]

    def state_dict(self) -> dict[str, Any]:
        return {"share": self.share, "difficulty": self.difficulty}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.share, self.difficulty = state["share"], state["difficulty"]

    def on_epoch_end(self, epoch: int, metrics: dict[str, float]) -> None:
        self.share = min(1.0, self.share + 0.2 * metrics["validation_loss"])
        self.difficulty = np.roll(self.difficulty, 1 + int(1000 * metrics["train_loss"]) % 17)


class GraphClassifier(LightningModule):
    """GAT with every kind of state that a resume can lose: dropout, running statistics, optimizer moments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GATConv(6, 8, heads=2, dropout=0.2)
        self.norm = nn.BatchNorm1d(16)
        self.second = GATConv(16, 8, dropout=0.2)
        self.head = nn.Linear(8, 2)

    def forward(self, batch: Batch) -> Tensor:
        x = self.norm(self.first(batch.x, batch.edge_index)).relu()
        x = self.second(nn.functional.dropout(x, 0.2, self.training), batch.edge_index).relu()
        return self.head(global_mean_pool(x, batch.batch))

    def training_step(self, batch: Batch) -> Tensor:
        loss = nn.functional.cross_entropy(self(batch), batch.y)
        self.log("train_loss", loss)
        # Python's and numpy's generators take part too.
        return loss * (1.0 + 0.01 * float(np.random.rand()))

    def validation_step(self, batch: Batch) -> None:
        logits = self(batch)
        self.log("validation_loss", nn.functional.cross_entropy(logits, batch.y))
        self.log("validation_accuracy", (logits.argmax(1) == batch.y).float().mean())


def make_sources(batch_size: int = CONFIG.batch_size) -> tuple[CurriculumSource, GraphSource]:
    """Make the two splits."""
    train = CurriculumSource(make_graphs(NUM_GRAPHS, seed=1), batch_size, SEED)
    return train, GraphSource(make_graphs(40, seed=2), 16, SEED, shuffle=False)


def train(directory: RunDirectory, config: TrainingConfig = CONFIG, deadline: Deadline | None = None) -> FitResult:
    """Fit once, or go on, and write the weights if training ended."""
    seed_everything(SEED)
    module = GraphClassifier()
    result = fit(module, *make_sources(), config, directory, SEED, deadline)
    if not result.paused:
        save_weights(directory, module, {"kind": "test"}, {"best_epoch": result.best_epoch})
    return result


def at_event(event: str, occurrence: int, action: Callable[[], None]) -> None:
    """Do `action` in this process at the n-th occurrence of an event; seen from outside by Python's audit hooks.

    Events: `step` a training batch is asked for; `validation` a validation batch is asked for; `open` the temporary
    file of a checkpoint is about to be opened; `hash` the checkpoint lies complete in its temporary file, its hash is
    about to be written; `rename` hash written, checkpoint about to be renamed; `renamed` checkpoint renamed, the older
    ones are about to be removed; `metrics` the row of an epoch is about to be appended.
    """
    remaining = [occurrence]
    renamed: set[str] = set()

    def count_down() -> None:
        remaining[0] -= 1
        if remaining[0] == 0:
            action()

    def see(name: str, arguments: tuple[Any, ...]) -> None:
        seen = ""
        if name == "kdgat.tests.gather":
            seen = arguments[0]
        elif name == "open" and isinstance(arguments[0], (str, os.PathLike)):
            file_name, mode = Path(arguments[0]).name, arguments[1]
            if file_name == "metrics.jsonl" and mode == "a+":
                seen = "metrics"
            elif file_name.startswith(".checkpoint-") and ".pt.sha256." in file_name:
                seen = "hash"
            elif file_name.startswith(".checkpoint-"):
                seen = "open"
        elif name == "os.rename" and str(arguments[1]).endswith(".pt"):
            seen = "rename"
            renamed.add(str(arguments[1]))
        elif name == "os.remove" and str(arguments[0]).endswith(".pt") and renamed:
            seen = "renamed"
        if seen == event:
            count_down()

    sys.addaudithook(see)


def kill_self() -> None:
    """Die without any chance to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_writing() -> None:
    """Let the kernel end this process in the middle of its next write of more than 10,000 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))


def run_child(
    path: Path,
    checkpoint_every_steps: int | None,
    event: str = "",
    occurrence: int = 0,
    how: str = "",
    environment: Mapping[str, str] | None = None,
) -> None:
    """Be the child: train in `path`, with something happening to it at an event, and exit like a stage.

    Within a job that is about to end, as its environment says, no time is kept free for what is not measured.
    """
    torch.set_num_threads(1)
    os.environ.update(environment or {})
    actions = {
        "kill": kill_self,
        "partial": die_while_writing,
        "term": partial(os.kill, os.getpid(), signal.SIGTERM),
        "stop": partial(os.kill, os.getpid(), signal.SIGSTOP),
    }
    if event:
        at_event(event, occurrence, actions[how])
    config = CONFIG.model_copy(update={"checkpoint_every_steps": checkpoint_every_steps})
    if environment:
        config = config.model_copy(update={"checkpoint_margin_s": 0.0})
    path.mkdir(parents=True, exist_ok=True)
    with RunDirectory(path).lock() as directory:
        result = train(directory, config)
    sys.exit(EXIT_PAUSED if result.paused else EXIT_FINISHED)
