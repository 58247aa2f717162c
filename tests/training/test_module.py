"""A LightningModule as people write it: its optimizer, schedulers, hooks, metrics and attributes, also after kills."""

import copy
import random
import signal

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import BinaryAccuracy

from kdgat.base import ConfigurationError, UserError
from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig
from kdgat.training.fit import fit
from tests.training.number_source import Numbers

VALUES = np.random.default_rng(0).normal(size=10)
SIZES = (3, 3, 4)
CONFIG = TrainingConfig(max_epochs=4, patience=None, monitor="val_loss", checkpoint_every_steps=1)


class Written(LightningModule):
    """Uses what modules of repositories use, and lets all of it reach the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
        self.train_accuracy, self.val_accuracy = BinaryAccuracy(), BinaryAccuracy()
        self.largest = MaxMetric()
        self.beta, self.num_steps, self.num_epochs = 0.0, 0, 0
        self.recent: list[float] = []
        self.means = {"loss": torch.zeros(())}
        self.noise = torch.Generator().manual_seed(5)
        self.numpy_noise, self.python_noise = np.random.default_rng(6), random.Random(7)
        self.average = {name: one.detach().clone() for name, one in self.net.named_parameters()}
        self.calls: list[str] = []
        self.example_input_array = torch.zeros(2, 1)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_start(self) -> None:
        self.calls.append("on_train_start")

    def on_train_epoch_start(self) -> None:
        self.beta = min(1.0, self.current_epoch / 3)
        self.num_epochs += 1

    def _outputs(self, values):
        return self.net(values[:, None])[:, 0]

    def training_step(self, batch, batch_idx):
        noise = torch.randn(len(batch), generator=self.noise) + self.numpy_noise.normal() + self.python_noise.random()
        predicted = self._outputs(batch + 0.1 * noise)
        self.train_accuracy((predicted > 0).long(), (batch > 0).long())
        self.log("train_accuracy", self.train_accuracy, on_step=False, on_epoch=True, prog_bar=True)
        loss = (predicted - batch).square().mean() + self.beta * predicted.square().mean() * self.num_epochs
        return {"loss": loss, "predicted": predicted}

    def on_after_backward(self) -> None:
        for one in self.parameters():
            if one.grad is not None:
                one.grad += 1e-3 * self.num_steps

    def on_before_optimizer_step(self, optimizer) -> None:
        self.recent = [*self.recent[-3:], float(next(self.parameters()).grad.norm())]

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=1.0 + sum(self.recent), gradient_clip_algorithm="norm")

    def on_train_batch_end(self, outputs, batch, batch_idx) -> None:
        self.num_steps += 1
        self.means["loss"] += outputs["loss"]
        with torch.no_grad():
            for name, one in self.net.named_parameters():
                self.average[name].mul_(0.9).add_(one, alpha=0.1)

    def validation_step(self, batch, batch_idx):
        predicted = self._outputs(batch)
        self.val_accuracy.update((predicted > 0).long(), (batch > 0).long())
        self.largest(predicted.max())
        self.log("val_accuracy", self.val_accuracy)
        self.log("largest", self.largest)
        self.log("val_loss", (predicted - batch).square().mean(), on_epoch=True)

    def on_train_epoch_end(self) -> None:
        self.log("mean_loss", self.means["loss"] / self.num_steps)

    def on_save_checkpoint(self, checkpoint) -> None:
        checkpoint["average"] = self.average

    def on_load_checkpoint(self, checkpoint) -> None:
        self.average = copy.deepcopy(checkpoint["average"])


def train(module, path, config=CONFIG, kill_at=()):
    """Fit on numbers, and end like a killed process right before these steps."""
    path.mkdir(exist_ok=True)
    steps = iter(kill_at)
    once = next(steps, None)
    while True:
        one = module()
        if once is not None:
            original = one.training_step

            def step(batch, batch_idx, one=one, original=original, at=once):
                if one.global_step == at:
                    raise KeyboardInterrupt
                return original(batch, batch_idx)

            one.__dict__["training_step"] = step
        try:
            torch.manual_seed(3)
            result = fit(one, Numbers(VALUES, SIZES), Numbers(VALUES, SIZES), config, RunDirectory(path), 3)
        except KeyboardInterrupt:
            once = next(steps, None)
            continue
        return one, result


def make(module=Written):
    torch.manual_seed(0)
    return module()


def same(one, other):
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_module_as_people_write_it_ends_the_same_wherever_it_is_killed(tmp_path):
    whole, result = train(make, tmp_path / "whole")
    assert result.epochs == 4
    for number, kills in enumerate([(1,), (2, 3, 4), (5, 6, 7, 8), (9, 11)]):
        resumed, again = train(make, tmp_path / str(number), kill_at=kills)
        same(whole, resumed)
        assert again.history == result.history
        for name in ("beta", "num_steps", "num_epochs", "recent"):
            assert getattr(whole, name) == getattr(resumed, name), name
        assert all(torch.equal(whole.average[name], resumed.average[name]) for name in whole.average)
        assert whole.noise.get_state().equal(resumed.noise.get_state())


@pytest.mark.parametrize("at", [1, 3, 5, 6])
def test_validation_that_is_left_in_the_middle_counts_nothing_twice(tmp_path, at):
    class Counting(Written):
        def __init__(self):
            super().__init__()
            self.num_validated = 0

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.num_validated += 1
            self.log("num_validated", float(self.num_validated))

    class Leaving(Counting):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            if self.num_validated == at:
                signal.raise_signal(signal.SIGTERM)

    config = CONFIG.model_copy(update={"checkpoint_every_steps": None})
    whole, result = train(lambda: make(Counting), tmp_path / "whole", config)
    _, paused = train(lambda: make(Leaving), tmp_path / "left", config)
    assert paused.paused
    resumed, again = train(lambda: make(Counting), tmp_path / "left", config)
    same(whole, resumed)
    assert again.history == result.history


def test_metric_objects_are_computed_over_an_epoch_and_begin_the_next_one_empty(tmp_path):
    class Counted(Written):
        def __init__(self):
            super().__init__()
            self.mean_value = MeanMetric()

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.mean_value.update(batch)
            self.log("mean_value", self.mean_value)

    _, result = train(lambda: make(Counted), tmp_path)
    assert [row["mean_value"] for row in result.history] == pytest.approx([float(VALUES.mean())] * 4)
    assert all(0 <= row[name] <= 1 for row in result.history for name in ("train_accuracy", "val_accuracy"))


def test_rate_is_that_of_the_modules_scheduler(tmp_path):
    _, result = train(make, tmp_path)
    rates = [row["learning_rate"] for row in result.history]
    assert max(rates) <= 0.1
    assert len(set(rates)) == 4


@pytest.mark.parametrize(
    ("scheduler", "rates"),
    [
        (lambda one: torch.optim.lr_scheduler.StepLR(one, 2, 0.5), [1.0, 1.0, 0.5, 0.5]),
        (lambda one: torch.optim.lr_scheduler.MultiStepLR(one, [1, 3], 0.1), [1.0, 0.1, 0.1, 0.01]),
        (lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda epoch: 1 / (1 + epoch)), [1.0, 0.5, 1 / 3, 0.25]),
        (
            lambda one: {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(one, factor=0.5, patience=0),
                "monitor": "val_loss",
            },
            [1.0, 1.0, 0.5, 0.25],
        ),
        (
            lambda one: {"scheduler": torch.optim.lr_scheduler.StepLR(one, 1, 0.5), "interval": "step", "frequency": 3},
            [1.0, 0.5, 0.25, 0.125],
        ),
    ],
)
def test_schedulers_go_by_epochs_steps_and_metrics_over_kills(tmp_path, scheduler, rates):
    class Scheduled(LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
            return [optimizer], [scheduler(optimizer)]

        def training_step(self, batch, batch_idx):
            return self.weight.sum() * 0.0

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", 1.0)

    at_begin = []

    class Noting(Scheduled):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 0:
                at_begin.append(self.optimizers().param_groups[0]["lr"])

    _, whole = train(Noting, tmp_path / "whole")
    assert at_begin == pytest.approx(rates)
    _, resumed = train(Scheduled, tmp_path / "killed", kill_at=(2, 4, 8, 10))
    assert whole.history == resumed.history


def test_hooks_are_called_in_the_order_of_lightning(tmp_path):
    hooks = (
        *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_before_backward"),
        *("on_after_backward", "on_before_optimizer_step", "on_train_batch_end", "on_validation_start"),
        *("on_validation_epoch_start", "on_validation_batch_start", "on_validation_batch_end"),
        *("on_validation_epoch_end", "on_validation_end", "on_train_epoch_end", "on_train_end", "on_fit_end"),
    )
    seen = []
    body = {name: (lambda self, *arguments, name=name: seen.append(name)) for name in hooks}
    noting = type("Noting", (Written,), body)
    train(lambda: make(noting), tmp_path, CONFIG.model_copy(update={"max_epochs": 1}))
    batches = SIZES
    expected = [*hooks[:3], *hooks[3:8] * len(batches), *hooks[8:10], *hooks[10:12] * len(batches), *hooks[12:]]
    assert seen == expected


def test_batches_pass_through_the_transfer_hooks(tmp_path):
    class Doubling(Written):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch * 2

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch + 1

        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("received", batch.mean())

    _, result = train(lambda: make(Doubling), tmp_path)
    assert result.history[0]["received"] == pytest.approx(2 * VALUES.mean() + 1, rel=1e-5)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda self: None, "makes no optimizer"),
        (lambda self: [torch.optim.SGD(self.parameters(), lr=1.0)] * 2, "makes 2 optimizers: make one"),
        (lambda self: torch.optim.LBFGS(self.parameters()), "LBFGS, whose step computes the loss anew"),
        (lambda self: {"lr_scheduler": None}, "makes no optimizer"),
        (lambda self: "sgd", "Unknown configuration"),
    ],
)
def test_optimizers_that_cannot_be_stepped_are_refused_in_a_sentence(tmp_path, made, text):
    module = type("Odd", (Written,), {"configure_optimizers": made})
    with pytest.raises(UserError, match=text):
        train(lambda: make(module), tmp_path)


def test_scheduler_of_an_unknown_metric_lists_those_there_are(tmp_path):
    class Plateau(Written):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "validation_f1"}

    with pytest.raises(ConfigurationError, match=r"'validation_f1', which is no metric .* val_accuracy, val_loss"):
        train(lambda: make(Plateau), tmp_path)


def test_attributes_that_a_checkpoint_cannot_hold_are_left_alone(tmp_path):
    class Odd:
        def state_dict(self):
            return {"thing": object()}

        def load_state_dict(self, state):
            pass

    class Keeping(Written):
        def on_train_epoch_start(self):
            super().on_train_epoch_start()
            self.things = {"a": [1, Odd()]}
            self.other = Odd()

    module, _ = train(lambda: make(Keeping), tmp_path)  # nobody can tell whether it has changed
    assert isinstance(module.other, Odd)


def test_reductions_other_than_the_mean_are_refused(tmp_path):
    class Largest(Written):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", batch.max(), reduce_fx="max")

    with pytest.raises(UserError, match=r"'val_loss' with reduce_fx='max', .*MaxMetric"):
        train(lambda: make(Largest), tmp_path)
