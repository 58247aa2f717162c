"""Training settings: wrong ones are refused, and those that do not change the result may change on resume."""

import pytest

from kdgat.stage.configuration import ConfigurationError, validate_config
from kdgat.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"max_epoch": 3}, "did you mean 'max_epochs'"),
        ({"max_epochs": 0}, "max_epochs=0"),
        ({"precision": "16"}, "precision='16'"),
        ({"precision": "16-mixed", "accelerator": "cpu"}, "needs a GPU"),
        ({"learning_rate": "fast"}, "learning_rate='fast'"),
    ],
)
def test_wrong_settings_are_refused_by_name(data, named):
    with pytest.raises(ConfigurationError, match=named):
        validate_config(TrainingConfig, data)


def test_survival_settings_are_no_part_of_the_computation():
    changed = {"checkpoint_interval_s": 1.0, "checkpoint_every_steps": 3, "checkpoint_margin_s": 5.0}
    assert TrainingConfig(**changed).computation() == TrainingConfig().computation()
    assert TrainingConfig(learning_rate=1.0).computation() != TrainingConfig().computation()
