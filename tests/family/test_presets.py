"""What holds for the presets of every family."""

from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from kdgat.cluster import ResourceRequest
from kdgat.family import Family, find_family
from kdgat.lap.config import DEFAULT_PROGRESSION, ProgressiveStage

# What cannot be left out of a configuration.
REQUIRED: dict[str, dict[str, Any]] = {
    "can": {"data": {"dataset": "synthetic", "data_root": "data"}},
    "lap": {},
    "trees": {},
}
# Values of dictionaries that are models: the presets explain them under one of their keys.
VALUES: dict[str, dict[str, type[BaseModel]]] = {
    "can": {},
    "lap": {f"progression.{next(iter(DEFAULT_PROGRESSION))}.": ProgressiveStage},
    "trees": {},
}


@pytest.fixture(params=["can", "lap", "trees"])
def family(request: pytest.FixtureRequest) -> Family:
    return find_family(request.param)


def dotted_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from dotted_keys(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def written_keys(content: dict[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in content.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from written_keys(value, f"{prefix}{name}.")


def test_the_tutorial_preset_explains_every_key_once(family: Family) -> None:
    text = (resources.files(family.config.preset_package) / "presets" / "tutorial.yaml").read_text(encoding="utf-8")
    written = set(written_keys(yaml.safe_load(text)))
    assert set(dotted_keys(family.config)) - written == {"preset"}  # which says its own name
    for prefix, model in {**VALUES[family.name], "resources.default.": ResourceRequest}.items():
        assert set(dotted_keys(model, prefix)) <= written
    for line in text.splitlines():
        is_section = line.rstrip().endswith(":")
        if line.strip() and not line.lstrip().startswith("#") and not is_section:
            assert "  # " in line, f"no comment: {line}"


def test_the_tutorial_preset_says_what_the_defaults_are(family: Family) -> None:
    given = REQUIRED[family.name]
    assert family.config.from_preset("tutorial", given) == family.config.from_data({"preset": "tutorial", **given})


def test_a_configuration_survives_being_written_down(family: Family) -> None:
    config = family.config.from_preset("full", {**REQUIRED[family.name], "seeds": [4, 2]}, ["training.max_epochs=3"])
    assert family.config.from_data(config.model_dump(mode="json")) == config
