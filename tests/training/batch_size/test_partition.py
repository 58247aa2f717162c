"""A batch that does not fit is cut into parts, and the training is that of the whole batch."""

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_mean_pool

from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig
from kdgat.training.batch_size.trial import cut
from kdgat.training.checkpoints import Checkpoints
from kdgat.training.fit import fit
from tests.training.graph_training import GraphSource, make_graphs

CONFIG = TrainingConfig(max_epochs=3, learning_rate=0.01, checkpoint_every_epoch=True, patience=None)


class SmallMemory(LightningModule):
    """A model on a device with room for so many graphs, which complains the way CUDA does."""

    def __init__(self, room: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.room = room
        self.largest = 0
        self.convolution = GCNConv(6, 8)
        self.head = nn.Linear(8, 2)

    def loss(self, batch: Batch) -> torch.Tensor:
        if batch.num_graphs > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        self.largest = max(self.largest, batch.num_graphs)
        x = self.convolution(batch.x, batch.edge_index).relu()
        return nn.functional.cross_entropy(self.head(global_mean_pool(x, batch.batch)), batch.y)

    def training_step(self, batch: Batch) -> torch.Tensor:
        return self.loss(batch)

    def on_validation_epoch_start(self) -> None:
        self.num_validated = 0

    def validation_step(self, batch: Batch) -> None:
        self.log("validation_loss", self.loss(batch))
        self.num_validated += batch.num_graphs

    def on_validation_epoch_end(self) -> None:
        self.log("num_validated", self.num_validated, batch_size=1)


def run(path, room, validation_batch=7, config=CONFIG):
    path.mkdir()
    graphs = make_graphs(30, seed=1)
    train, validation = (
        GraphSource(graphs, 12, 0, shuffle=True),
        GraphSource(graphs, validation_batch, 0, shuffle=False),
    )
    module = SmallMemory(room)
    return module, fit(module, train, validation, config, RunDirectory(path), 0)


def test_training_in_parts_gives_the_weights_and_means_of_whole_batches(tmp_path, caplog):
    whole, expected = run(tmp_path / "whole", room=100)
    parts, result = run(tmp_path / "parts", room=3)
    assert parts.largest <= 3 < whole.largest
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)
    for row, expected_row in zip(result.history, expected.history, strict=True):
        assert row["train_loss"] == pytest.approx(expected_row["train_loss"], rel=1e-3)
        assert row["validation_loss"] == pytest.approx(expected_row["validation_loss"], rel=1e-3)
    assert "batches are cut into 4 parts from now on" in caplog.text


def test_accumulated_gradients_are_those_of_whole_batches_and_no_part_is_larger_than_asked_for(tmp_path, caplog):
    whole, expected = run(tmp_path / "whole", room=100)
    parts, result = run(tmp_path / "parts", room=4, config=CONFIG.model_copy(update={"accumulate": 3}))
    assert parts.largest == 4 < whole.largest
    for name, tensor in whole.state_dict().items():
        torch.testing.assert_close(parts.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)
    assert result.history[-1]["train_loss"] == pytest.approx(expected.history[-1]["train_loss"], rel=1e-3)
    assert "batches are cut" not in caplog.text


def test_validation_that_does_not_fit_starts_again_and_counts_each_graph_once(tmp_path):
    _, result = run(tmp_path / "run", room=12, validation_batch=30)
    assert [row["num_validated"] for row in result.history] == [30.0] * 3


class Counting(SmallMemory):
    """Counts its steps and draws a number in each, before memory runs out."""

    def __init__(self, room: int) -> None:
        super().__init__(room)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("unused", None)
        self.draws: list[float] = []

    def training_step(self, batch: Batch) -> torch.Tensor:
        self.steps += 1
        self.draws.append(float(torch.rand(())))
        return self.loss(batch)


def test_a_step_that_is_done_again_in_parts_counts_once_and_draws_the_same_numbers(tmp_path):
    room, config = 6, CONFIG.model_copy(update={"max_epochs": 1})
    modules = []
    for name, accumulate in (("again", 1), ("at once", 2)):
        (tmp_path / name).mkdir()
        graphs = make_graphs(24, seed=1)
        sources = [GraphSource(graphs, size, 0, shuffle=size == 12) for size in (12, 6)]
        module = Counting(room)
        changed = config.model_copy(update={"accumulate": accumulate})
        fit(module, *sources, changed, RunDirectory(tmp_path / name), 0)
        modules.append(module)
    again, at_once = modules
    assert int(again.steps) == int(at_once.steps) == 4
    assert again.draws[1:] == at_once.draws
    for name, tensor in at_once.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_number_of_parts_is_in_the_checkpoint(tmp_path):
    run(tmp_path / "run", room=3)
    found = Checkpoints(RunDirectory(tmp_path / "run")).load_newest()
    assert found is not None
    assert found[1]["state"]["num_parts"] == 4


def test_single_graph_that_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        run(tmp_path / "run", room=0)


def test_cut_keeps_order_and_makes_no_empty_part():
    parts = cut(np.arange(5), 8)
    assert [part.tolist() for part in parts] == [[0], [1], [2], [3], [4]]
    assert np.concatenate(cut(np.arange(10), 4)).tolist() == list(range(10))
