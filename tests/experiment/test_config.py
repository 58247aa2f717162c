"""The arguments of a module and a data function are keys of the configuration."""

import os
from pathlib import Path
from typing import Any

import pytest

from kdgat.base import ConfigurationError
from kdgat.experiment import Experiment, Stage
from kdgat.experiment.config import ExperimentConfig, typed_arguments
from kdgat.experiment.declaration import ExperimentError
from kdgat.experiment.plan import files_digest, plan_experiment


def configured(source: Path, *overrides: str, **given: Any) -> ExperimentConfig:
    return ExperimentConfig.from_preset("quick", {"source": str(source), **given}, overrides)


def test_an_argument_is_set_by_its_key_and_typed_by_its_annotation(source: Path) -> None:
    config = configured(source, "model.hidden=16")
    assert config.arguments("model", "small") == {"hidden": 16, "depth": 2, "dropout": 0.2}


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("model.hiden=3", "unknown key 'hiden': did you mean 'hidden'"),
        ("model.hidden=many", "hidden"),
        ("data.larges=3", "unknown key 'larges': did you mean 'largest'"),
    ],
)
def test_a_wrong_argument_is_refused_by_key_and_value(source: Path, override: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        configured(source, override)


def test_what_a_stage_declares_holds_until_somebody_says_otherwise(source: Path) -> None:
    config = configured(source)
    assert [config.arguments("data", stage)["largest"] for stage in ("small", "large")] == [3, 6]
    assert [config.training_for(stage).max_epochs for stage in ("small", "large")] == [2, 3]
    everywhere = configured(source, "data.largest=4", "training.max_epochs=1")
    assert [everywhere.arguments("data", stage)["largest"] for stage in ("small", "large")] == [4, 4]
    assert [everywhere.training_for(stage).max_epochs for stage in ("small", "large")] == [1, 1]


def test_stages_with_the_same_data_share_a_preparation(source: Path) -> None:
    names = [stage.name for stage in plan_experiment(configured(source))]
    assert names == ["prepare", "prepare-large", "small-seed0", "large-seed0", "evaluation-seed0"]
    shared = [stage.name for stage in plan_experiment(configured(source, "data.largest=5"))]
    assert shared == ["prepare", "small-seed0", "large-seed0", "evaluation-seed0"]


def test_a_root_is_asked_for_by_the_function_alone(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no argument `root`"):
        plan_experiment(configured(source, root=str(tmp_path)))
    source.write_text(source.read_text().replace("def data(graphs", "def data(root, graphs"))
    with pytest.raises(ExperimentError, match="--root"):
        plan_experiment(configured(source))
    folder = tmp_path / "raw"
    folder.mkdir()
    first = plan_experiment(configured(source, root=str(folder)))[0]
    (folder / "more.csv").write_text("1\n")
    assert plan_experiment(configured(source, root=str(folder)))[0] != first


@pytest.mark.parametrize(
    ("stages", "what"),
    [
        ([], "stages is empty"),
        ([Stage("A b")], "no name for a stage"),
        ([Stage("prepare")], "no name for a stage"),
        ([Stage("a"), Stage("a")], "two stages are called 'a'"),
        ([Stage("a"), Stage("b", starts_from="c")], "starts from 'c'"),
    ],
)
def test_stages_that_cannot_be_planned_are_refused(stages: list[Stage], what: str) -> None:
    with pytest.raises(ExperimentError, match=what):
        Experiment(object, lambda: None, stages=stages)  # type: ignore[arg-type]


def test_a_list_becomes_the_tuple_that_the_module_is_annotated_with(source: Path) -> None:
    source.write_text(
        source.read_text().replace("hidden: int = 8,", "hidden: int = 8, sizes: tuple[int, ...] = (1, 2),")
    )
    config = configured(source, "model.sizes=[3, 4]")
    plain = config.arguments("model", "small")
    assert plain["sizes"] == [3, 4]
    assert typed_arguments(config.experiment.module, plain)["sizes"] == (3, 4)


def test_defaults_stay_what_they_are_in_the_code(source: Path) -> None:
    more = "hidden: int = 8, widths=(16, 32), by_place={1: 2.0}, last: int = None,"
    source.write_text(source.read_text().replace("hidden: int = 8,", more))
    config = configured(source, "model.hidden=4")
    assert typed_arguments(config.experiment.module, config.arguments("model", "small")) == {"hidden": 4}
    config = configured(source, "model.last=3")
    assert typed_arguments(config.experiment.module, config.arguments("model", "small")) == {"last": 3}


def test_what_pyg_has_made_of_older_files_is_refused(tmp_path: Path) -> None:
    for path in ("raw/a.csv", "processed/pre_transform.pt", "processed/data.pt", "generated/processed/b.csv"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
    for path, moment in (("raw/a.csv", 10), ("generated/processed/b.csv", 10), ("processed/pre_transform.pt", 20)):
        os.utime(tmp_path / path, (moment, moment))
    (tmp_path / "loop").symlink_to(tmp_path)
    first = files_digest(tmp_path)
    (tmp_path / "processed" / "data.pt").write_text("2")
    assert files_digest(tmp_path) == first
    (tmp_path / "generated" / "processed" / "b.csv").write_text("22")
    os.utime(tmp_path / "generated" / "processed" / "b.csv", (11, 11))
    assert files_digest(tmp_path) != first
    os.utime(tmp_path / "raw" / "a.csv", (30, 30))
    with pytest.raises(ExperimentError, match=r"processed was made before .*a\.csv"):
        files_digest(tmp_path)


def test_a_parameter_without_an_annotation_takes_what_is_like_its_default(source: Path) -> None:
    source.write_text(
        source.read_text().replace("hidden: int = 8, depth: int = 2, dropout: float", "hidden=8, depth=2, dropout")
    )
    assert configured(source, "model.dropout=0.3", "model.hidden=4").arguments("model", "small")["dropout"] == 0.3
    with pytest.raises(ConfigurationError, match="dropout='high'"):
        configured(source, "model.dropout=high")
