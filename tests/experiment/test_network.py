"""What the first step of a training would refuse, its plan refuses."""

from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.plan import plan_experiment

ENCODER = "        self.encoder = GIN("


OPTIMIZERS = "    def configure_optimizers"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (ENCODER, f"        self.automatic_optimization = False\n{ENCODER}", "automatic_optimization is False"),
        (OPTIMIZERS, f"    def train_dataloader(self):\n        pass\n\n{OPTIMIZERS}", "train_dataloader"),
        ("GIN(3,", "GIN(-1,", "has no size yet"),
        ("Linear(hidden, 1)", "Linear(hidden, 'one')", r"stage small: Net\(hidden=8, .*\) cannot be made: TypeError"),
        ("encoder.convs.0.*", "coder.*", "no parameter is called 'coder"),
    ],
)
def test_a_plan_refuses_what_no_training_would_take(source: Path, old: str, new: str, what: str) -> None:
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=what):
        plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}))


def test_keys_of_adamw_are_refused_beside_an_optimizer_of_the_module_s_own(source: Path) -> None:
    overrides = ["training.learning_rate=0.1"]
    with pytest.raises(UserError, match=r"training\.learning_rate=0\.1 would count for nothing: Net has its own"):
        plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}, overrides))
    source.write_text(source.read_text().replace(OPTIMIZERS, "    def other_optimizers"))
    assert plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}, overrides))


@pytest.mark.parametrize(("monitor", "mode"), [("val/auroc", "min"), ("val_loss", "max")])
def test_a_mode_that_would_keep_the_worst_epoch_is_refused(source: Path, monitor: str, mode: str) -> None:
    overrides = [f"training.monitor={monitor}", f"training.mode={mode}"]
    with pytest.raises(UserError, match=f"training.mode={mode} would keep the worst epoch by {monitor}"):
        plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}, overrides))
    other = [overrides[0], f"training.mode={'max' if mode == 'min' else 'min'}"]
    assert plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}, other))


@pytest.mark.parametrize("monitor", ["val_negative_log_likelihood", "val_fid_score", "loss_dice", "mae_f"])
def test_a_name_that_leaves_doubt_refuses_no_mode(source: Path, monitor: str) -> None:
    for mode in ("min", "max"):
        overrides = [f"training.monitor={monitor}", f"training.mode={mode}"]
        assert plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}, overrides))


def test_a_module_that_looks_at_values_is_planned(source: Path) -> None:
    text = source.read_text()
    source.write_text(text.replace(ENCODER, f"        assert torch.ones(2).sum().item() == 2\n{ENCODER}", 1))
    assert plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}))


def test_a_stage_whose_weights_do_not_fit_the_one_before_is_refused(source: Path) -> None:
    text = source.read_text()
    source.write_text(text.replace('Stage("large", ', 'Stage("large", model={"hidden": 9}, '))
    with pytest.raises(UserError, match=r"large cannot start from the weights of small: .* is \(9"):
        plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(source)}))
