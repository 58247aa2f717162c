"""What holds for the presets of every family."""

from typing import Any

import pytest

from kdgat.cli.config import keys_of
from kdgat.family import Family, find_family
from kdgat.lap.config import DEFAULT_PROGRESSION

# What cannot be left out of a configuration.
REQUIRED: dict[str, dict[str, Any]] = {
    "can": {"data": {"dataset": "synthetic", "data_root": "data"}},
    "lap": {},
    "trees": {},
}


@pytest.fixture(params=["can", "lap", "trees"])
def family(request: pytest.FixtureRequest) -> Family:
    return find_family(request.param)


def test_every_key_says_what_it_means(family: Family) -> None:
    keys = list(keys_of(family.config))
    of_the_user = {f"progression.{name}" for name in DEFAULT_PROGRESSION} | {"resources.default"}
    assert len(keys) > 80
    assert [key.name for key in keys if not key.meaning and key.name not in of_the_user] == []


def test_the_tutorial_preset_says_what_the_defaults_are(family: Family) -> None:
    given = REQUIRED[family.name]
    assert family.config.from_preset("tutorial", given) == family.config.from_data({"preset": "tutorial", **given})


def test_a_configuration_survives_being_written_down(family: Family) -> None:
    config = family.config.from_preset("full", {**REQUIRED[family.name], "seeds": [4, 2]}, ["training.max_epochs=3"])
    assert family.config.from_data(config.model_dump(mode="json")) == config
