"""What is wrong in the configuration of a run on trees is refused, in a line that a person can read."""

import pytest

from kdgat.base import ConfigurationError, UserError
from kdgat.trees.config import TreesConfig
from kdgat.trees.plan import plan_trees


@pytest.mark.parametrize("preset", ["quick", "full", "tutorial"])
def test_every_preset_is_valid(preset: str) -> None:
    assert TreesConfig.from_preset(preset, {}, []).data.data_root is None


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("label_fractions=[0, 2]", "label_fractions: 0.0 is no share"),
        ("data.kind=river", "choose 'neurons' or 'rivers'"),
        ("data.contract=true", "data.contract is for trees that are read: give data.data_root (--data-root)"),
        ("data.labels=mine.csv", "data.labels is for trees that are read"),
        ("data.target=length", "data.target is for trees that are read"),
        ("training_of.finetun.max_epochs=3", "training_of: unknown key 'finetun': did you mean 'finetune'?"),
        ("training_of.finetune.max_epoch=3", "training_of.finetune: unknown key 'max_epoch': did you mean 'max_ep"),
        ("training_of.finetune.max_epochs=many", "training_of.finetune: max_epochs='many'"),
    ],
)
def test_a_wrong_override_is_refused_without_the_rest_of_the_configuration(override: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        TreesConfig.from_preset("quick", {}, [override])
    assert expected in str(error.value)
    assert "order" not in str(error.value)
    assert len(str(error.value)) < 200


def test_what_is_read_may_be_set_beside_a_folder() -> None:
    config = TreesConfig.from_preset("quick", {}, ["data.data_root=mine", "data.target=a", "data.contract=true"])
    assert (config.data.target, config.data.contract) == ("a", True)


def test_stages_that_come_to_nothing_are_refused_with_the_reason() -> None:
    config = TreesConfig.from_preset("quick", {"stages": ["finetune"], "label_fractions": []})
    with pytest.raises(UserError, match=r"stages: there is no finetune in this run, because no tree has a label"):
        plan_trees(config, ())
