"""Training finds the best weights, plans each epoch anew, and refuses what it cannot do."""

import copy
import json
import math
import os
import signal
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import nn
from torchmetrics.classification import BinaryAccuracy

from kdgat.base import ConfigurationError, UserError
from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig
from kdgat.training.checkpoints import CheckpointError
from kdgat.training.fit import fit
from kdgat.training.progress import WRITE_INTERVAL_S
from kdgat.training.state import FitState
from tests.support.faults import unwritable
from tests.training.graph_training import CONFIG, SEED, GraphClassifier, GraphSource, make_graphs, make_sources
from tests.training.number_source import Numbers


class Follower(LightningModule):
    """One weight that moves by the gradient 1, so that its value tells the number of steps."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_index):
        self.log("batch_mean", batch.mean())
        return self.weight.sum() + 0.0 * batch.mean()

    def validation_step(self, batch):
        self.log("validation_loss", (self.weight.detach() + 0.05).abs().sum())


VALUES = [1.0, 2.0, 3.0, 4.0, 10.0]
STEADY = TrainingConfig(
    max_epochs=8, learning_rate=0.01, weight_decay=0.0, schedule="constant", warmup_fraction=0.0, patience=None
)


def test_batches_change_each_epoch_as_the_curriculum_moves(tmp_path):
    train, validation = make_sources()
    seen = []
    plan = train.plan
    train.plan = lambda epoch: seen.append(plan(epoch)) or seen[-1]
    result = fit(GraphClassifier(), train, validation, CONFIG, RunDirectory(tmp_path), SEED)
    sizes = [sum(len(batch) for batch in epoch) for epoch in seen]
    assert len(seen) == result.epochs == CONFIG.max_epochs
    assert sizes == sorted(set(sizes)), "the share of the graphs grows every epoch"
    assert len({np.concatenate(epoch).tobytes() for epoch in seen}) == CONFIG.max_epochs


def test_training_reduces_the_loss_on_real_graph_layers(tmp_path):
    graphs = make_graphs(96, seed=1)
    sources = GraphSource(graphs, 16, SEED, shuffle=True), GraphSource(graphs, 48, SEED, shuffle=False)
    config = CONFIG.model_copy(update={"max_epochs": 12, "learning_rate": 0.02})
    result = fit(GraphClassifier(), *sources, config, RunDirectory(tmp_path), SEED)
    assert result.history[-1]["validation_loss"] < 0.8 * result.history[0]["validation_loss"]
    assert result.metrics["validation_accuracy"] > 0.7


def test_module_ends_with_the_best_weights_not_the_last(tmp_path):
    # The weight falls by 0.01 a step, 3 steps an epoch, and passes its best value of -0.05 in the second epoch.
    module = Follower()
    result = fit(module, Numbers(VALUES), Numbers(VALUES), STEADY, RunDirectory(tmp_path), 0)
    losses = [row["validation_loss"] for row in result.history]
    assert result.best_epoch == int(np.argmin(losses)) == 1
    assert result.best_metric == result.metrics["validation_loss"] == min(losses)
    assert module.weight.item() == pytest.approx(-0.06, abs=1e-6)
    assert len(result.history) == 8
    assert not module.training


def test_mode_max_selects_the_largest(tmp_path):
    config = STEADY.model_copy(update={"mode": "max"})
    result = fit(Follower(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)
    assert result.best_epoch == 7


def test_training_stops_after_patience_epochs_without_progress(tmp_path):
    config = STEADY.model_copy(update={"patience": 3})
    result = fit(Follower(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)
    assert result.epochs == 1 + 1 + 3
    assert result.reason == "validation_loss has not improved for 3 epochs"


def test_epoch_means_are_weighted_by_graphs_and_loss_is_logged_if_the_module_does_not(tmp_path):
    config = STEADY.model_copy(update={"max_epochs": 1})
    directory = RunDirectory(tmp_path)
    result = fit(Follower(), Numbers(VALUES), Numbers(VALUES), config, directory, 0)
    assert result.metrics["batch_mean"] == pytest.approx(np.mean(VALUES))
    # Loss = weight before each step, 0 then -0.01 then -0.02, for 2, 2 and 1 graphs.
    assert result.metrics["train_loss"] == pytest.approx((2 * -0.01 + 1 * -0.02) / 5)
    rows = [json.loads(line) for line in directory.metrics_path.read_text().splitlines()]
    assert all(row["num_planned"] > 0 for row in rows), "the source's own description of an epoch"
    assert rows == result.history
    assert rows[0]["is_best"] is True


def test_loss_that_is_not_finite_names_epoch_step_and_learning_rate(tmp_path):
    class Overflowing(Follower):
        def training_step(self, batch):
            return (self.weight * batch).sum()

    train = Numbers([1.0, 1.0, 1.0, math.inf, 1.0])
    with pytest.raises(FloatingPointError, match=r"the loss is -inf in epoch 0 at step 2 \(learning rate 0.01\)"):
        fit(Overflowing(), train, Numbers(VALUES), STEADY, RunDirectory(tmp_path), 0)
    assert not (tmp_path / "checkpoints").exists()


def test_monitored_metric_that_is_not_finite_fails(tmp_path):
    class Undefined(Follower):
        def validation_step(self, batch):
            self.log("validation_loss", math.nan)

    with pytest.raises(FloatingPointError, match="validation_loss is nan in epoch 0"):
        fit(Undefined(), Numbers(VALUES), Numbers(VALUES), STEADY, RunDirectory(tmp_path), 0)


@pytest.mark.parametrize("where", ["weight", "norm.running_mean"])
def test_weights_that_are_not_finite_are_never_kept_whatever_the_metric_says(tmp_path, where):
    class Accurate(Follower):
        count = 0

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(1)
            self.register_buffer("mask", torch.tensor([-math.inf]))  # as it should be

        def validation_step(self, batch):
            self.count += 1
            if self.count > 3:  # in the second epoch
                self.state_dict()[where].fill_(math.nan)
            self.log("validation_accuracy", 0.1 * self.count)

    config = STEADY.model_copy(update={"monitor": "validation_accuracy", "mode": "max", "max_epochs": 2})
    with pytest.raises(FloatingPointError, match=rf"{where} is not finite after epoch 1 \(step 6\), though"):
        fit(Accurate(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)


def test_what_lightning_allows_and_kdgat_does_not_is_a_sentence(tmp_path):
    class Nothing(Follower):
        def training_step(self, batch):
            return None

    class Manual(Follower):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

    class Metric(Follower):
        def validation_step(self, batch):
            self.log("accuracy", BinaryAccuracy())

    for module, text in (
        (Nothing(), "Nothing.training_step returned NoneType"),
        (Manual(), "Manual.automatic_optimization is False"),
        (Metric(), "logs 'accuracy' as a metric object that is no attribute of it: set it in __init__"),
    ):
        with pytest.raises(UserError, match=text):
            fit(module, Numbers(VALUES), Numbers(VALUES), STEADY, RunDirectory(tmp_path), 0)


def test_a_checkpoint_of_another_model_is_a_sentence(tmp_path):
    class Wider(Follower):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))

    directory = RunDirectory(tmp_path)
    fit(Follower(), Numbers(VALUES), Numbers(VALUES), STEADY, directory, 0)
    with pytest.raises(CheckpointError, match=r"pt is of another model than this stage has .*size mismatch.*: put the"):
        fit(Wider(), Numbers(VALUES), Numbers(VALUES), STEADY, directory, 0)


def test_unknown_monitor_lists_the_metrics_there_are(tmp_path):
    config = STEADY.model_copy(update={"monitor": "val_loss"})
    with pytest.raises(ConfigurationError, match=r"'val_loss' .* batch_mean, train_loss, validation_loss"):
        fit(Follower(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)


@pytest.mark.parametrize("empty", ["training", "validation"])
def test_empty_split_is_refused(tmp_path, empty):
    sources = {"training": Numbers(VALUES), "validation": Numbers(VALUES), empty: Numbers([], sizes=())}
    with pytest.raises(UserError, match=f"no {empty} batches"):
        fit(Follower(), sources["training"], sources["validation"], STEADY, RunDirectory(tmp_path), 0)


@pytest.mark.parametrize(
    "hook",
    [
        *("setup", "prepare_data", "configure_model", "train_dataloader", "transfer_batch_to_device"),
        *("backward", "optimizer_step", "optimizer_zero_grad", "configure_callbacks", "on_validation_model_eval"),
    ],
)
def test_hook_that_would_be_ignored_is_refused(tmp_path, hook):
    module = type("Hooked", (Follower,), {hook: lambda self, *arguments: None})()
    with pytest.raises(UserError, match=f"Hooked.{hook} would never be called"):
        fit(module, Numbers(VALUES), Numbers(VALUES), STEADY, RunDirectory(tmp_path), 0)


def test_what_a_trainer_calls_outside_of_a_fit_may_stay_in_a_module(tmp_path):
    outside = {name: lambda self, *arguments: None for name in ("test_step", "on_test_epoch_end", "predict_step")}
    config = STEADY.model_copy(update={"max_epochs": 1})
    module = type("WithTest", (Follower,), outside)()
    assert fit(module, Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0).epochs == 1


def test_state_that_is_no_tensor_is_refused_before_the_first_step(tmp_path):
    class Counting(Follower):
        def get_extra_state(self):
            return {"count": 1}

    with pytest.raises(UserError, match=r"_extra_state of Counting's state is a dict: .*register_buffer"):
        fit(Counting(), Numbers(VALUES), Numbers(VALUES), STEADY, RunDirectory(tmp_path), 0)


def test_module_knows_its_epoch_and_step_also_after_a_kill(tmp_path):
    seen = []

    class Knowing(Follower):
        def training_step(self, batch, batch_index):
            seen.append((self.current_epoch, self.global_step))
            return super().training_step(batch, batch_index)

        def validation_step(self, batch):
            seen.append((self.current_epoch, self.global_step))
            super().validation_step(batch)

    class Killed(Knowing):
        def training_step(self, batch, batch_index):
            if self.global_step == 4:
                raise KeyboardInterrupt
            return super().training_step(batch, batch_index)

    config = STEADY.model_copy(update={"max_epochs": 3, "checkpoint_every_steps": 1})
    with pytest.raises(KeyboardInterrupt):
        fit(Killed(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)
    fit(Knowing(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)
    assert seen == [(epoch, 3 * epoch + step) for epoch in range(3) for step in (0, 1, 2, 3, 3, 3)]


def test_training_metric_can_be_monitored_without_a_validation_split(tmp_path):
    config = STEADY.model_copy(update={"monitor": "train_loss", "max_epochs": 2})
    result = fit(Follower(), Numbers(VALUES), None, config, RunDirectory(tmp_path), 0)
    assert result.best_epoch == 1


def test_validation_metrics_of_a_whole_epoch_come_from_its_end_hook(tmp_path):
    class Counting(Follower):
        def on_validation_epoch_start(self):
            self.num_seen = 0

        def validation_step(self, batch):
            self.num_seen += len(batch)
            super().validation_step(batch)

        def on_validation_epoch_end(self):
            self.log("validation_graphs", float(self.num_seen))

    result = fit(Counting(), Numbers(VALUES), Numbers(VALUES), STEADY, RunDirectory(tmp_path), 0)
    assert [row["validation_graphs"] for row in result.history] == [5.0] * 8


def test_validation_draws_the_same_numbers_every_epoch_and_leaves_training_alone(tmp_path):
    class Drawing(Follower):
        validation_draws = 0

        def training_step(self, batch):
            self.log("train_draw", torch.rand(()))
            return super().training_step(batch, 0)

        def validation_step(self, batch):
            super().validation_step(batch)
            self.log("validation_draw", torch.rand(self.validation_draws).mean())

    histories = []
    for num_draws in (1, 3):
        module = Drawing()
        module.validation_draws = num_draws
        directory = RunDirectory(tmp_path / str(num_draws))
        directory.path.mkdir()
        histories.append(fit(module, Numbers(VALUES), Numbers(VALUES), STEADY, directory, 0).history)
    assert len({row["validation_draw"] for row in histories[0]}) == 1
    assert len({row["train_draw"] for row in histories[0]}) == 8
    assert [row["train_draw"] for row in histories[0]] == [row["train_draw"] for row in histories[1]]


def test_two_fits_share_a_run_directory_by_name(tmp_path):
    directory = RunDirectory(tmp_path)
    for name in ("first", "second", "first"):
        config = STEADY.model_copy(update={"max_epochs": 2})
        fit(Follower(), Numbers(VALUES), Numbers(VALUES), config, directory, 0, name=name)
    rows = directory.read_metrics()
    assert sorted((row["fit"], row["epoch"]) for row in rows) == [
        (name, epoch) for name in ("first", "second") for epoch in (0, 1)
    ]


def test_only_parameters_that_require_a_gradient_are_trained(tmp_path):
    module = Follower()
    module.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    config = STEADY.model_copy(update={"weight_decay": 0.5})
    fit(module, Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)
    assert module.frozen.item() == 1.0
    assert module.weight.item() < 0.0


def test_gradients_are_clipped_to_the_norm(tmp_path):
    class Steep(Follower):
        def training_step(self, batch):
            return 1000.0 * self.weight.sum()

    norms = []
    step = torch.optim.AdamW.step

    def recording(self, *arguments, **keywords):
        norms.append(float(self.param_groups[0]["params"][0].grad.norm()))
        return step(self, *arguments, **keywords)

    config = STEADY.model_copy(update={"gradient_clip": 0.5, "max_epochs": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", recording)
        fit(Steep(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)
    assert norms == pytest.approx([0.5] * 3, rel=1e-4)


def test_bf16_mixed_precision_autocasts_and_keeps_float32_weights(tmp_path):
    class Recording(GraphClassifier):
        def training_step(self, batch):
            self.dtype_seen = self.head(torch.ones(1, 8, device=self.device)).dtype
            return super().training_step(batch)

    module = Recording()
    config = CONFIG.model_copy(update={"precision": "bf16-mixed", "max_epochs": 1})
    fit(module, *make_sources(), config, RunDirectory(tmp_path), SEED)
    assert module.dtype_seen == torch.bfloat16
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@pytest.mark.parametrize(("deterministic", "warns_only"), [(None, True), (True, False)])
def test_deterministic_is_meant_where_it_is_asked_for(tmp_path, monkeypatch, deterministic, warns_only):
    class Looking(Follower):
        def training_step(self, batch):
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled() is warns_only
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
            return super().training_step(batch, 0)

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    config = STEADY.model_copy(update={"deterministic": deterministic, "max_epochs": 1, "accelerator": "cpu"})
    fit(Looking(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)


def test_process_settings_and_signal_handlers_are_put_back(tmp_path):
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), signal.getsignal(signal.SIGTERM))
    config = STEADY.model_copy(update={"num_threads": torch.get_num_threads() + 1, "max_epochs": 1})
    fit(Follower(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(tmp_path), 0)
    after = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), signal.getsignal(signal.SIGTERM))
    assert after == before


def test_trained_module_can_be_copied_as_a_teacher(tmp_path):
    module = GraphClassifier()
    config = CONFIG.model_copy(update={"max_epochs": 1})
    fit(module, *make_sources(), config, RunDirectory(tmp_path), SEED)
    teacher = copy.deepcopy(module)
    assert all(
        torch.equal(a, b) for a, b in zip(teacher.state_dict().values(), module.state_dict().values(), strict=True)
    )


def test_progress_tells_position_loss_and_rate(tmp_path, monkeypatch):
    monkeypatch.setattr("kdgat.training.progress.WRITE_INTERVAL_S", 0.0)
    assert WRITE_INTERVAL_S > 0
    directory = RunDirectory(tmp_path)
    fit(Follower(), Numbers(VALUES), None, STEADY.model_copy(update={"monitor": "train_loss"}), directory, 0)
    progress = json.loads(directory.progress_path.read_text())
    assert (progress["epoch"], progress["step"], progress["num_steps"], progress["phase"]) == (7, 3, 3, "train")
    assert progress["loss"] == pytest.approx(-0.23, abs=1e-5)
    assert progress["graphs_per_s"] > 0
    assert progress["seconds_to_deadline"] is None


def test_training_goes_on_where_its_progress_cannot_be_written(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("kdgat.training.progress.WRITE_INTERVAL_S", 0.0)
    directory, undisturbed = RunDirectory(tmp_path / "hurt"), RunDirectory(tmp_path / "undisturbed")
    config, models = STEADY.model_copy(update={"monitor": "train_loss"}), []
    for one in (directory, undisturbed):
        one.path.mkdir()
        models.append(Follower())
        with unwritable(one.progress_path) if one is directory else nullcontext():
            fit(models[-1], Numbers(VALUES), None, config, one, 0)
    assert sum(str(directory.progress_path) in message for message in caplog.messages) == 1
    assert directory.read_metrics() == undisturbed.read_metrics()
    hurt, whole = (model.state_dict() for model in models)
    assert all(torch.equal(hurt[name], whole[name]) for name in whole)


def test_the_last_epoch_within_the_tolerance_is_taken(tmp_path):
    config = STEADY.model_copy(update={"monitor_tolerance": 0.035})
    losses = [row["validation_loss"] for row in _fitted(tmp_path / "strict", STEADY).history]
    result = _fitted(tmp_path / "tolerant", config)
    within = [epoch for epoch, loss in enumerate(losses) if loss <= min(losses[: epoch + 1]) + 0.035]
    assert result.best_epoch == within[-1] != int(np.argmin(losses))
    assert result.best_metric == losses[within[-1]]


def test_steps_back_do_not_add_up_to_more_than_the_tolerance():
    state, module = FitState(), nn.Linear(1, 1)
    taken = []
    for epoch, value in enumerate((0.5, 0.75, 0.734375, 0.71875, 0.703125, 0.6875)):
        state.epoch = epoch
        taken.append(state.take_best(module, value, "max", tolerance=0.03125))
    assert taken == [True, True, True, True, False, False]
    assert (state.best_epoch, state.best_metric, state.epochs_without_progress) == (3, 0.75, 4)


def _fitted(path, config):
    path.mkdir()
    return fit(Follower(), Numbers(VALUES), Numbers(VALUES), config, RunDirectory(path), 0)
