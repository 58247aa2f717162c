"""Configuration: typed overrides, presets, and errors that name key, value and fix."""

import math
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
    unknown_key_text,
    without_keys,
    write_yaml,
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
        ("training.max_epochs=two", "max_epochs=two: write a whole number$"),
        ("training.max_epochs=0", "max_epochs=0: write 1 or more$"),
        ("training.max_epochs=2.5", "write a whole number$"),
        ("training.mode=middle", "^override training.mode=middle: choose 'min' or 'max'$"),
        ("training.clip=much", "much: write a number or null$"),
        (
            "training.widths=[a]",
            r"^override training.widths=\[a\]: write a whole number, as \[<int>, ...\]$",
        ),
        ("extra=3", r"^override extra=3: write \{<str>: <int>, ...\}$"),
        ("training=3", "^override training=3: write keys with values, as {key: value}$"),
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


def test_what_took_the_place_of_a_former_key_is_said_of_configuration_alone():
    with pytest.raises(ConfigurationError, match="unknown key 'epochs': give max_epochs"):
        validate_config(Stage, {"training": {"epochs": 2}})
    with pytest.raises(ConfigurationError, match="unknown key 'epochs': give max_epochs"):
        apply_overrides(Stage(), ["training.epochs=2"])
    assert unknown_key_text("epochs", ["prepare", "line"]) == "unknown key 'epochs': known keys: line, prepare"


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


def test_what_is_written_in_one_way_only_is_a_number_and_the_rest_is_text() -> None:
    numbers = "[3, 0, -2, +5, 0x10, 0o17, 1.5, 1.0e+3, 1e-3, .5, 2., -.inf, .inf, true, False, null, ~]"
    assert read_yaml(numbers) == [
        3, 0, -2, 5, 16, 15, 1.5, 1000.0, 0.001, 0.5, 2.0, -math.inf, math.inf, True, False, None, None,
    ]  # fmt: skip
    assert {type(value) for value in read_yaml("[3, 0x10, 0o17]")} == {int}
    words = ["16:00:00", "2:30", "1:30.5", "0100", "010", "09", "1_000", "0b11", "no", "on", "YES", "y", "2026-11-25"]
    assert read_yaml(f"[{', '.join(words)}]") == words
    assert read_yaml("{no: 0.3, 010: 1, ~: 2}") == {"no": 0.3, "010": 1, "~": 2}


class Written(Config):
    count: int = 0
    rate: float = 0.0
    is_on: bool | None = None
    name: str = ""
    counts: tuple[int, ...] = ()
    shares: dict[str, float] = Field(default_factory=dict)


def test_a_field_says_what_is_meant_by_what_is_written() -> None:
    text = "{count: 0100, rate: 1_000, is_on: off, name: 010, counts: [1, 010, 09], shares: {no: 0.3}}"
    expected = Written(count=100, rate=1000, is_on=False, name="010", counts=(1, 10, 9), shares={"no": 0.3})
    assert validate_config(Written, read_yaml(text)) == expected
    words = ["count=0100", "rate=1_000", "is_on=off", "name=010", "counts=[1, 010, 09]", "shares={no: 0.3}"]
    assert apply_overrides(Written(), words) == expected
    with pytest.raises(ConfigurationError, match=r"^count='no': .*; name=\['x'\]: .*; shares.no='on': "):
        validate_config(Written, read_yaml("{count: no, name: [x], shares: {no: on}}"))


def test_a_wrong_key_of_a_mapping_is_named() -> None:
    class Places(Config):
        at: dict[int, float] = Field(default_factory=dict)

    with pytest.raises(ConfigurationError, match=r"^at.off: the key='off': "):
        validate_config(Places, read_yaml("at: {off: 0.3}"))


@pytest.mark.parametrize(
    "text", ["a: 1\nb: {c: 2,\n  c: 3}", "a: &a {x: 1}\nb: 2\na: *a", "{no: 1, no: 2}", "'a': 1\na: 2"]
)
def test_a_key_that_stands_twice_is_refused_with_its_lines(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match=r"stands twice, in lines \d and \d: remove one"):
        read_yaml(text)


def test_mappings_are_merged_and_their_own_keys_count() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b, x: 3}\nd: {<<: [*b, *a]}\ne: *b"
    assert read_yaml(text)["c"] == {"x": 3, "y": 2}
    assert read_yaml(text)["d"] == read_yaml(text)["e"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("value", ["010", "1e3", "0o17", "no", "true", "~", "2026-11-25", "16:00:00", "", "a", 1e-5, 3])
def test_what_is_written_is_read_back(value: object) -> None:
    assert read_yaml(write_yaml({"a": [value], str(value): None})) == {"a": [value], str(value): None}


def test_who_reaches_into_a_list_is_told_that_the_whole_list_can_be_given() -> None:
    with pytest.raises(ConfigurationError, match=r"has no keys; give the whole of it: counts=\[4, 5\]"):
        apply_overrides(Written(counts=(4, 5)), ["counts.0=3"])


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
