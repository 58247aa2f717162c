"""What a night trains and why, without the flow that makes it."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kdgat.base import UserError
from kdgat.can.config import CanConfig
from kdgat.can.nightly.comparison import Comparison
from kdgat.can.nightly.new_recordings import NewRecordings
from kdgat.can.nightly.run import Retrain, changed_settings, night_config, reason_to_train, run_config
from kdgat.canbus.profile import Profile
from kdgat.registry import Registry
from kdgat.run.directory import RunIndex
from tests.can.small_runs import small_config

CONFIG = small_config(Path("data"))


def new_recordings(**recordings: str) -> NewRecordings:
    return NewRecordings(recordings=recordings, new=sorted(recordings))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    """Return a registry with a model of CONFIG."""
    registry = Registry(tmp_path / "registry")
    add_model(registry, CONFIG.model_dump(mode="json"))
    return registry


def add_model(registry: Registry, config: dict[str, Any]) -> str:
    index = RunIndex(family="can", config=config, stages=[])
    content = index.model_dump_json().encode()
    return registry.add({"run.json": content}, family="can", dataset="cars", content=sha256(content).hexdigest()).id


def test_a_run_leaves_out_what_cannot_be_used_and_starts_from_the_registered_weights(tmp_path: Path) -> None:
    found = NewRecordings(recordings={}, leave_out=("b.csv", "a.csv"))
    config = run_config(CONFIG, found, Registry(tmp_path), "model-1")
    assert config.data.leave_out == ("a.csv", "b.csv")
    assert config.start_from == str(tmp_path / "models" / "model-1")
    assert run_config(CONFIG, found, Registry(tmp_path), None).start_from is None


def test_a_night_trains_for_new_recordings_for_another_configuration_or_because_it_is_told_to(
    registry: Registry,
) -> None:
    (model,) = (entry.id for entry in registry.read().models)
    known, longer = NewRecordings(recordings={"a": "1"}), small_config(Path("data"), "training.max_epochs=9")
    found = new_recordings(a="1")
    moved = small_config(Path("elsewhere"), "training.checkpoint_every_steps=7", "start_from=runs/a")

    def reason(recordings: NewRecordings, config: CanConfig, last: str | None = model, retrain: Retrain = "new") -> str:
        return reason_to_train(recordings, config, registry, last, retrain)

    assert reason(found, CONFIG) == "recordings: 1 new"
    assert reason(known, CONFIG) == ""
    assert reason(known, moved) == ""  # changes no result
    assert reason(known, longer) == f"the configuration has changed since {model}: training.max_epochs 2 -> 9"
    assert reason(known, CONFIG, retrain="always") == "retrain=always"
    assert reason(known, CONFIG, last="gone") == "the model of the last night is not in the registry"
    assert reason(known, CONFIG, last=None) == "the model of the last night is not in the registry"
    # There is nothing to train on, whatever was asked for.
    assert reason(NewRecordings(recordings={}), longer, retrain="always") == ""


def test_a_key_that_another_version_of_kdgat_lacks_is_no_change(registry: Registry) -> None:
    content = CONFIG.model_dump(mode="json")
    del content["training"]["patience"]  # added since: what it had then is the default of now
    older = add_model(registry, content)
    default = CanConfig.from_data(content).training.patience
    changes = changed_settings(CONFIG, registry, older)
    assert changes == ([] if default == CONFIG.training.patience else [f"training.patience {default} -> null"])
    content["training"]["of_old"] = 3  # and gone since: only what both have is compared
    oldest = add_model(registry, content)
    assert changed_settings(CONFIG, registry, oldest) == []
    longer = small_config(Path("data"), "training.max_epochs=9", "training_of.normal.max_epochs=4")
    assert changed_settings(longer, registry, oldest) == ["training.max_epochs 2 -> 9"]
    assert "training_of.normal.max_epochs unset -> 4" in changed_settings(longer, registry, older)


def test_a_model_whose_files_are_damaged_gives_no_reason_to_train(registry: Registry) -> None:
    (entry,) = registry.read().models
    path = registry.model_path(entry.id) / "run.json"
    path.chmod(0o644)
    path.write_text("{")
    assert changed_settings(CONFIG, registry, entry.id) == []


def test_a_configuration_that_no_night_can_train_is_refused() -> None:
    with pytest.raises(UserError, match="give start_from instead"):
        night_config(small_config(Path("data"), "start_from=runs/a"))
    with pytest.raises(UserError, match="needs the stage evaluation"):
        night_config(small_config(Path("data"), "stages=[normal]"))


def test_a_profile_that_a_night_cannot_judge_by_is_refused_before_it_trains(tmp_path: Path) -> None:
    path = tmp_path / "car.json"
    with pytest.raises(UserError, match=r"car\.json is no file: make it with `kdgat profile`"):
        night_config(small_config(Path("data")), path)
    Profile().write(path)
    assert night_config(small_config(Path("data")), path) == small_config(Path("data"))
    with pytest.raises(UserError, match=r"evaluation\.rule=fixed does not ask: set evaluation\.rule=budget"):
        night_config(small_config(Path("data"), "evaluation.rule=fixed"), path)


def test_scores_are_of_the_same_test_set_if_the_recordings_of_their_scenario_are() -> None:
    one = Comparison(metrics={}, recordings=[], left_out={}, contents={"a/x": "1", "a/y": "2", "b/x": "3"})
    other = Comparison(metrics={}, recordings=[], left_out={}, contents={"a/renamed": "2", "a/x": "1", "b/x": "4"})
    assert one.test_sets().keys() == {"a", "b"}
    assert one.test_sets()["a"] == other.test_sets()["a"]
    assert one.test_sets()["b"] != other.test_sets()["b"]
