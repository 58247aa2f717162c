"""Configuration: typed overrides, presets, and errors that name key, value and fix."""

import sys
from typing import Annotated, Literal

import pytest
import yaml
from pydantic import Field

from kdgat.base import Config, ConfigurationError, validate_config
from kdgat.base.configuration import (
    ExecutionOnly,
    apply_overrides,
    execution_keys,
    load_preset,
    read_yaml,
    without_keys,
)


class Training(Config):
    max_epochs: int = Field(3, ge=1)
    learning_rate: float = 1e-3
    monitor: str = "loss"
    clip: float | None = 1.0
    mode: Literal["min", "max"] = "min"
    widths: list[int] = Field(default_factory=lambda: [4, 2])


class Stage(Config):
    training: Training = Training()
    extra: dict[str, int] = Field(default_factory=dict)
    optional: Training | None = None
    named: dict[str, Training] = Field(default={"first": Training()}, min_length=1)


@pytest.mark.parametrize(
    ("override", "path", "expected"),
    [
        ("training.max_epochs=2", ("training", "max_epochs"), 2),
        ("training.learning_rate=1e-4", ("training", "learning_rate"), 1e-4),
        ("training.learning_rate=1", ("training", "learning_rate"), 1.0),
        ("training.monitor=123", ("training", "monitor"), "123"),
        ("training.monitor=no", ("training", "monitor"), "no"),
        ("training.monitor=a=b", ("training", "monitor"), "a=b"),
        ("training.clip=null", ("training", "clip"), None),
        ("training.mode=max", ("training", "mode"), "max"),
        ("training.widths=[8, 4]", ("training", "widths"), [8, 4]),
        ("extra.speed=3", ("extra", "speed"), 3),
        ("optional.max_epochs=5", ("optional", "max_epochs"), 5),
        ("named.first.max_epochs=5", ("named", "first", "max_epochs"), 5),
        ("named.second.max_epochs=5", ("named", "second", "max_epochs"), 5),
    ],
)
def test_override_is_typed_by_its_field(override, path, expected):
    value = apply_overrides(Stage(), [override])
    for key in path:
        value = value[key] if isinstance(value, dict) else getattr(value, key)
    assert value == expected
    assert type(value) is type(expected)


def test_overrides_leave_the_original_and_the_rest_alone():
    base = Stage()
    changed = apply_overrides(base, ["training.max_epochs=2", "training.mode=max"])
    assert base == Stage()
    assert changed == Stage(training=Training(max_epochs=2, mode="max"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.max_epoch=2", r"training.max_epoch=2: unknown key 'max_epoch': did you mean 'max_epochs'\?"),
        ("trainig.max_epochs=2", r"unknown key 'trainig': did you mean 'training'\?"),
        ("qqqq=2", "unknown key 'qqqq': known keys: extra, named, optional, training"),
        ("training.max_epochs=two", "max_epochs=two: expected int, .*integer"),
        ("training.max_epochs=0", "max_epochs=0: expected int, .*greater than or equal to 1"),
        ("training.max_epochs=2.5", "expected int"),
        ("training.mode=middle", "expected one of 'min', 'max'"),
        ("training.clip=much", "expected float or null"),
        (
            "training.widths=[a]",
            r"^override training.widths=\[a\]: expected \[<int>, ...\], input should be a valid integer, [a-z ]*; "
            r"write training.widths=\[<int>, ...\]$",
        ),
        ("extra=3", r"; write extra=\{<str>: <int>, ...\}$"),
        ("training.max_epochs.deep=1", "training.max_epochs is 3 and has no keys"),
        ("optional.clip.deep=1", "optional.clip is float or null and has no keys"),
        ("training.max_epochs", "has no key=value form"),
        ("=3", "has no key=value form"),
    ],
)
def test_wrong_override_names_key_value_and_fix(override, message):
    with pytest.raises(ConfigurationError, match=message):
        apply_overrides(Stage(), [override])


def test_wrong_file_content_names_nested_key_and_value():
    with pytest.raises(ConfigurationError, match=r"training: unknown key 'max_epoch': did you mean 'max_epochs'\?"):
        validate_config(Stage, {"training": {"max_epoch": 2}})
    with pytest.raises(ConfigurationError, match=r"training.max_epochs='two'"):
        validate_config(Stage, {"training": {"max_epochs": "two"}})


def test_configuration_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Stage().training = Training()


def test_presets_are_read_by_name_and_unknown_ones_list_the_known(tmp_path, monkeypatch):
    folder = tmp_path / "package_with_presets" / "presets"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "quick.yaml").write_text("training:\n  max_epochs: 2\n")
    (folder / "list.yaml").write_text("- 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_preset("package_with_presets", "quick") == {"training": {"max_epochs": 2}}
    with pytest.raises(ConfigurationError, match=r"'quik' is unknown .*: choose one of list, quick"):
        load_preset("package_with_presets", "quik")
    with pytest.raises(ConfigurationError, match=r"'list' .* is not a mapping"):
        load_preset("package_with_presets", "list")
    monkeypatch.delitem(sys.modules, "package_with_presets")


def test_numbers_with_colons_are_text_and_all_others_numbers() -> None:
    text = "[16:00:00, 2:30, 1:30.5, 3, 0x10, 1_000, -2, 1.5, 1.0e+3, .inf]"
    assert read_yaml(text) == ["16:00:00", "2:30", "1:30.5", 3, 16, 1000, -2, 1.5, 1000.0, float("inf")]


def test_yaml_that_names_python_objects_is_refused() -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml("!!python/object/apply:os.getcwd []")


class Fit(Config):
    rate: float = 1.0
    device: Annotated[str, ExecutionOnly] = "cpu"


class Fits(Config):
    fits: tuple[Fit, ...] = (Fit(), Fit(rate=2.0))
    by_name: dict[str, Fit] = Field({"a": Fit()})
    alone: Fit | None = Fit()
    folder: Annotated[str, ExecutionOnly] = "/scratch"


def test_keys_that_change_no_result_are_found_at_any_depth() -> None:
    assert execution_keys(Fits) == ("fits.*.device", "by_name.*.device", "alone.device", "folder")


def test_keys_are_left_out_at_any_depth() -> None:
    left = without_keys(Fits().model_dump(), execution_keys(Fits))
    assert left == {"fits": [{"rate": 1.0}, {"rate": 2.0}], "by_name": {"a": {"rate": 1.0}}, "alone": {"rate": 1.0}}
    assert without_keys({"alone": None}, ["alone.device", "absent.device"]) == {"alone": None}
