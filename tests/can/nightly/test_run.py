"""Runs and reports of nights, without the flow that makes them."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kdgat.can.config import CanConfig
from kdgat.can.nightly.comparison import Comparison
from kdgat.can.nightly.new_recordings import NewRecordings, NightlyError
from kdgat.can.nightly.run import (
    IN_SERVICE,
    NEW,
    NIGHTLY_FILE,
    NightlyDirectory,
    NightlyRecord,
    NightlyReport,
    Retrain,
    changed_settings,
    idle_run,
    night_config,
    reason_to_train,
    run_config,
)
from kdgat.registry.entry import ModelEntry, ServiceChange
from kdgat.registry.promotion import Promotion, PromotionRule
from kdgat.registry.registry import Registry
from kdgat.run.directory import OutputDirectory, RunError, RunIndex
from tests.can.small_runs import small_config

CONFIG = small_config(Path("data"))


@pytest.fixture
def directory(tmp_path: Path) -> NightlyDirectory:
    return NightlyDirectory(tmp_path / "nights")


def new_recordings(**recordings: str) -> NewRecordings:
    return NewRecordings(recordings=recordings, new=sorted(recordings))


def over(
    directory: NightlyDirectory, name: str, created: str, *, model: str | None = "m", is_over: bool = True
) -> Path:
    path = directory.runs_path / name
    record = NightlyRecord(created=created, recordings=name, config="", start=None, model=model, is_over=is_over)
    directory.write(path, record)
    (path / "stages" / "prepare").mkdir(parents=True)
    (path / "stages" / "prepare" / "train.h5").write_bytes(b"graphs")
    return path


def test_a_run_is_named_by_recordings_configuration_and_the_model_it_starts_from(directory: NightlyDirectory) -> None:
    first, record = directory.choose_run(CONFIG, new_recordings(a="1"), "model")
    assert record.start == "model"
    assert directory.choose_run(CONFIG, new_recordings(a="1"), "model") == (first, record)
    moved = small_config(Path("elsewhere"))
    assert directory.choose_run(moved, new_recordings(a="1"), "model")[0] == first
    longer = small_config(Path("data"), "training.max_epochs=9")
    scratch, record = directory.choose_run(
        CONFIG, new_recordings(a="1"), None
    )  # asked for while the other is unfinished
    assert record.start is None
    others = [
        directory.choose_run(CONFIG, new_recordings(a="2"), "model")[0],
        directory.choose_run(longer, new_recordings(a="1"), "model")[0],
    ]
    assert len({first, scratch, *others}) == 4


def test_a_night_goes_on_with_an_unfinished_run_even_if_another_model_is_in_service_by_now(
    directory: NightlyDirectory,
) -> None:
    path, record = directory.choose_run(CONFIG, new_recordings(a="1"), "old")
    assert directory.choose_run(CONFIG, new_recordings(a="1"), "newer") == (path, record)
    directory.write(path, record.model_copy(update={"is_over": True}))
    assert directory.choose_run(CONFIG, new_recordings(a="1"), "newer")[0] != path


def test_the_run_of_the_last_completed_night_is_over(directory: NightlyDirectory) -> None:
    path, record = directory.choose_run(CONFIG, new_recordings(a="1"), None)
    other, _ = directory.choose_run(CONFIG, new_recordings(a="2"), None)
    directory.write(path, record.model_copy(update={"model": "model-1"}))
    for model in (None, "model-0", "model-1"):
        directory.close_runs(model)
        assert directory.records()[path].is_over is (model == "model-1")
    assert not directory.records()[other].is_over


def test_only_the_newest_registered_runs_stay_and_nothing_else_is_touched(directory: NightlyDirectory) -> None:
    runs = [over(directory, f"night-{number}", f"2026-01-0{number}T00:00:00+00:00") for number in range(1, 5)]
    unfinished = over(directory, "night-0", "2025-01-01T00:00:00+00:00", is_over=False)
    unregistered = over(directory, "night-9", "2025-01-02T00:00:00+00:00", model=None)
    stranger = directory.runs_path / "mine"
    stranger.mkdir()
    for keep, removed in ((3, runs[:1]), (1, runs[1:3]), (1, [])):
        assert directory.old_runs(keep) == removed
        for path in removed:
            directory.remove_run(path)
    assert set(directory.runs_path.iterdir()) == {runs[3], unfinished, unregistered, stranger}
    assert (unfinished / "stages" / "prepare" / "train.h5").is_file()


def test_what_nights_that_did_not_end_leave_behind_is_reported_with_its_size(directory: NightlyDirectory) -> None:
    over(directory, "night-1", "2026-01-01T00:00:00+00:00")
    failed = over(directory, "night-2", "2026-01-02T00:00:00+00:00", is_over=False)
    (failed / "stages" / "prepare" / "test.h5").write_bytes(b"x" * 2_000_000)
    (failed / "data").symlink_to("/")  # what lies elsewhere is none of it
    ((path, num_bytes),) = directory.unfinished_runs().items()
    assert path == failed
    assert 2_000_000 < num_bytes < 2_001_000
    _, text = idle_run("cars", NewRecordings(recordings={}), None, unfinished={path: num_bytes})
    assert f"* `{failed}`: 2.0 MB" in text


def test_a_run_that_somebody_works_in_is_not_removed(directory: NightlyDirectory) -> None:
    runs = [over(directory, f"night-{number}", f"2026-01-0{number}T00:00:00+00:00") for number in (1, 2)]
    with OutputDirectory(runs[0]).lock(), pytest.raises(RunError, match="is in use"):
        directory.remove_run(runs[0])
    assert (runs[0] / "stages" / "prepare" / "train.h5").is_file()


def test_one_night_at_a_time(directory: NightlyDirectory) -> None:
    with (
        directory.lock(),
        pytest.raises(NightlyError, match="is in use by pid"),
        NightlyDirectory(directory.path).lock(),
    ):
        pass


def test_a_damaged_record_of_a_run_is_named(directory: NightlyDirectory) -> None:
    path = over(directory, "night-1", "2026-01-01T00:00:00+00:00")
    (path / NIGHTLY_FILE).write_text("{")
    with pytest.raises(NightlyError, match=rf"{NIGHTLY_FILE} is damaged"):
        directory.records()


def test_a_run_leaves_out_what_cannot_be_used_and_starts_from_the_registered_weights(tmp_path: Path) -> None:
    found = NewRecordings(recordings={}, leave_out=("b.csv", "a.csv"))
    config = run_config(CONFIG, found, Registry(tmp_path), "model-1")
    assert config.data.leave_out == ("a.csv", "b.csv")
    assert config.start_from == str(tmp_path / "models" / "model-1")
    assert run_config(CONFIG, found, Registry(tmp_path), None).start_from is None


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
    with pytest.raises(NightlyError, match="give start_from instead"):
        night_config(small_config(Path("data"), "start_from=runs/a"))
    with pytest.raises(NightlyError, match="needs the stage evaluation"):
        night_config(small_config(Path("data"), "stages=[normal]"))


def test_the_latest_run_and_report_are_found(directory: NightlyDirectory) -> None:
    assert directory.latest_run() is None
    assert directory.latest_report() is None
    for number, name in enumerate(("b", "c", "a")):
        for path in (directory.runs_path / name / "run.json", directory.reports_path / f"{name}.md"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
            os.utime(path, (number, number))
    assert directory.latest_report() == directory.reports_path / "a.md"
    run = directory.latest_run()
    assert run is not None
    assert run.path == directory.runs_path / "a"


def test_the_report_says_what_came_what_was_compared_and_why_it_was_decided_so(tmp_path: Path) -> None:
    found = NewRecordings(
        recordings={},
        new=["train_1__a.parquet"],
        changed=["test_1__b.parquet"],
        imported={"train_1/a.csv": "train_1__a.parquet"},
        refused={"inbox/c.csv": "no scenario in its name"},
        waiting=["d.csv"],
    )
    scores = {"f1": 0.9, "false_alarm_rate": 0.0, "num_windows": 1234.0}
    report = NightlyReport(
        dataset="cars",
        new_recordings=found,
        record=NightlyRecord(created="", recordings="", config="", start="cars-old"),
        entry=ModelEntry(id="cars-new", family="can", dataset="cars", content="0"),
        compared_with=ModelEntry(id="cars-old", family="can", dataset="cars", content="1"),
        comparison=Comparison(
            metrics={
                NEW: {"test_1": scores},
                IN_SERVICE: {"test_1": scores | {"f1": 0.8}},
                "cars-best": {"test_1": scores},
            },
            recordings=["test_1/b"],
            left_out={"test_1/e": "in_service was trained on it"},
        ),
        rule=PromotionRule(),
        decision=Promotion(True, ("mean f1 0.8 -> 0.9",)),
        run=tmp_path,
        unfinished={tmp_path / "night-0": 3_400_000},
        warning="mean f1 1.0000 cannot rise",
    )
    assert "report.html" not in report.markdown()
    (tmp_path / "report.html").write_text("")
    text = report.markdown()
    for words in (
        "**Warning**: mean f1 1.0000 cannot rise.",
        "Rule: mean f1 over scenarios better by 0.05 of the error, none worse by more than 0.01",
        f"`{tmp_path}/report.html`",
        "# cars: the new model goes into service",
        "`cars-new`, trained from the weights of `cars-old`; in service: `cars-old`",
        "* mean f1 0.8 -> 0.9",
        "* `train_1__a.parquet` from `train_1/a.csv`",
        "* `test_1__b.parquet`",
        "* `inbox/c.csv`: no scenario in its name",
        "* `d.csv`",
        "| test_1 | 1,234 | 0.9000 | 0.8000 | +0.1000 | 0.0000 | 0.0000 | +0.0000 |",
        "* `test_1/e`: in_service was trained on it",
        "Held to what was best before, too: `cars-best`.",
        f"* `{tmp_path}/night-0`: 3.4 MB",
    ):
        assert words in text
    assert report.sentence().startswith("recordings: 1 new, 1 changed, 1 refused, 1 still being written; cars-new went")


def test_the_report_of_a_night_without_new_recordings_says_why_it_trained(tmp_path: Path) -> None:
    entry = ModelEntry(id="cars-new", family="can", dataset="cars", content="0")
    report = NightlyReport(
        dataset="cars",
        new_recordings=NewRecordings(recordings={}),
        record=NightlyRecord(created="", recordings="", config="", start=None),
        entry=entry,
        compared_with=None,
        comparison=Comparison(metrics={}, recordings=[], left_out={}),
        rule=PromotionRule(accept="not_worse", margin=0.001),
        decision=Promotion(False, ("no scenario was measured",)),
        run=tmp_path,
        reason="retrain=always",
    )
    assert report.sentence().startswith("retrain=always; cars-new was registered and did not go into service")
    assert "Trained because of this: retrain=always." in report.markdown()
    assert "below the best so far by no more than 0.001" in report.markdown()


def test_scores_are_of_the_same_test_set_if_the_recordings_of_their_scenario_are() -> None:
    one = Comparison(metrics={}, recordings=[], left_out={}, contents={"a/x": "1", "a/y": "2", "b/x": "3"})
    other = Comparison(metrics={}, recordings=[], left_out={}, contents={"a/renamed": "2", "a/x": "1", "b/x": "4"})
    assert one.test_sets().keys() == {"a", "b"}
    assert one.test_sets()["a"] == other.test_sets()["a"]
    assert one.test_sets()["b"] != other.test_sets()["b"]


def test_a_quiet_night_still_names_what_it_refused() -> None:
    sentence, text = idle_run("cars", NewRecordings(recordings={}, refused={"c.csv": "broken"}), "cars-old")
    assert sentence == "nothing new: recordings: 1 refused; cars-old stays in service"
    assert "`c.csv`: broken" in text
    assert idle_run("cars", NewRecordings(recordings={}), None)[0].endswith("no model is in service")
    sentence, _ = idle_run("cars", NewRecordings(recordings={}, waiting=["d.csv"]), None)
    assert sentence.endswith("a file that changed less than settle_s seconds ago waits for the next night")
    first = NewRecordings(recordings={}, refused={"c.csv": "broken"}, newly_refused=("c.csv",))
    sentence, text = idle_run("cars", first, "cars-old")
    assert sentence == "every new file was refused: recordings: 1 refused; cars-old stays in service"
    assert text.startswith("# cars: every new file was refused")


def test_a_quiet_night_names_who_holds_the_model_in_service() -> None:
    held = ServiceChange(
        **{"kind": "hold", "family": "can", "dataset": "cars", "previous": "m", "model": "m", "hold": True},
        **{"reason": "it beeps", "by": "ann", "when": "2026-01-01T00:00:00+00:00"},
    )
    sentence, text = idle_run("cars", NewRecordings(recordings={}), "m", held)
    assert sentence.endswith("m stays in service, held by ann since 2026-01-01T00:00:00+00:00: it beeps")
    assert "it beeps" in text
