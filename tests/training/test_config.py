"""Training settings: wrong ones are refused, and those that do not change the result may change on resume."""

import pytest

from kdgat.base import ConfigurationError, validate_config
from kdgat.training import TrainingConfig


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"max_epoch": 3}, "did you mean 'max_epochs'"),
        ({"memory_estimation": "trial"}, "give batch_size_mode, as batch_size_mode=trial"),
        ({"optimize_batch_size": True}, "batch_size_mode=tuner searches"),
        ({"graph_memory_safety_factor": 0.5}, "give safety_factor"),
        ({"use_cugraph": True}, "'use_cugraph': leave it out"),
        ({"batch_size_mode": "power"}, "batch_size_mode='power': is called tuner here"),
        ({"max_epochs": 0}, "max_epochs=0"),
        ({"precision": "16"}, "precision='16'"),
        ({"precision": "16-mixed", "accelerator": "cpu"}, "needs a GPU"),
        ({"precision": "tf32", "accelerator": "cpu"}, "precision tf32 needs a GPU: use bf16-mixed or 32-true"),
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


def test_a_snapshot_of_memory_is_no_part_of_the_computation_and_tf32_is():
    assert TrainingConfig(memory_snapshot=True).computation() == TrainingConfig().computation()
    assert "memory_snapshot" not in TrainingConfig().model_dump()
    assert TrainingConfig(precision="tf32").computation() != TrainingConfig().computation()


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"batch_size_mode": "auto"}, "batch_size_mode='auto'"),
        ({"memory_budget": "much"}, "write a whole number with M, G or T"),
        ({"safety_factor": 1.5}, "the factor of _default is 1.5: give a part above 0 and up to 1, usually 0.3 to 0.7"),
        ({"safety_factor": {"set_01": 0}}, "the factor of set_01 is 0"),
        ({"batch_size_mode": "tuner", "accelerator": "cpu"}, "set training.memory_budget to the memory that"),
    ],
)
def test_wrong_settings_of_a_search_are_refused_by_name(data, named):
    with pytest.raises(ConfigurationError, match=named):
        validate_config(TrainingConfig, data)


def test_what_a_search_is_told_is_read_by_fits_that_search_alone():
    factors = {"set_01": 0.55}
    searching = TrainingConfig(batch_size_mode="static", memory_budget="2048M", safety_factor=factors)
    assert searching.memory_budget == "2G"
    assert searching.for_dataset("set_01").safety_factor == {"_default": 0.55}
    assert searching.for_dataset("set_02").safety_factor == {"_default": 0.5}
    assert searching.for_dataset("set_02").computation() != TrainingConfig().computation()
    fixed = TrainingConfig(memory_budget="2G", safety_factor=factors).for_dataset("set_01")
    assert fixed.computation() == TrainingConfig().computation()
    assert not {"batch_size_mode", "memory_budget", "safety_factor"} & fixed.model_dump().keys()


def test_a_search_may_take_twice_its_budget_and_nothing_else_is_bounded():
    assert TrainingConfig(batch_size_mode="static", memory_budget="3M").search_bytes() == 6 << 20
    assert TrainingConfig(batch_size_mode="static").search_bytes() is None
    assert TrainingConfig(memory_budget="3M").search_bytes() is None
