from collections.abc import Iterator
from importlib import resources

import pytest
import yaml
from pydantic import BaseModel

from kdgat.can.config import PRESETS, CanConfig, load_config, make_config
from kdgat.stage.configuration import ConfigurationError

DATA = {"dataset": "synthetic", "data_root": "data"}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid(preset: str) -> None:
    assert make_config(preset, data=DATA).seeds


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.max_epoch=2", ["max_epoch", "max_epochs"]),
        ("training.max_epochs=many", ["training.max_epochs", "many", "int"]),
        ("trainin.max_epochs=2", ["trainin", "training"]),
        ("windows.size", ["windows.size", "key=value"]),
        ("data.validation_fraction=1.5", ["data.validation_fraction", "1.5"]),
        ("training_of.norml={}", ["norml", "normal"]),
        ("training_of.normal.max_epoch=2", ["max_epoch", "max_epochs"]),
        ("seeds=[1, 1]", ["seeds", "twice"]),
        ("stages=[curiculum]", ["stages", "curiculum"]),
    ],
)
def test_a_wrong_override_is_refused_with_key_value_and_fix(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_config("quick", [override], data=DATA)
    for word in words:
        assert word in str(error.value)


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="quick"):
        make_config("fast", data=DATA)


def test_a_common_training_override_beats_the_differences_of_the_preset() -> None:
    config = make_config("tutorial", ["training.max_epochs=2"], data=DATA)
    assert {config.training_for(stage).max_epochs for stage in ("autoencoder", "normal", "curriculum")} == {2}


def test_an_override_of_one_stage_leaves_the_others_alone() -> None:
    config = make_config("quick", ["training.max_epochs=4", "training_of.normal.max_epochs=3"], data=DATA)
    assert config.training_for("normal").max_epochs == 3
    assert config.training_for("curriculum").max_epochs == 4


def test_a_configuration_survives_being_written_down() -> None:
    config = make_config("full", ["training.max_epochs=3"], data={**DATA, "hold_out": ["kia"]}, seeds=[4, 2])
    assert load_config(config.model_dump(mode="json")) == config


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


def test_the_tutorial_preset_explains_every_key_once() -> None:
    text = (resources.files("kdgat.can") / "presets" / "tutorial.yaml").read_text(encoding="utf-8")
    written = set(written_keys(yaml.safe_load(text)))
    assert set(dotted_keys(CanConfig)) - written == {"preset"}  # which says its own name
    for line in text.splitlines():
        is_section = line.rstrip().endswith(":")
        if line.strip() and not line.lstrip().startswith("#") and not is_section:
            assert "  # " in line, f"no comment: {line}"


def test_the_tutorial_preset_says_what_the_defaults_are() -> None:
    assert make_config("tutorial", data=DATA) == CanConfig.model_validate({"preset": "tutorial", "data": DATA})
