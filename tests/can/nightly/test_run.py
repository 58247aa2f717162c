"""Runs and reports of nights, without the flow that makes them."""

from pathlib import Path

import pytest

from kdgat.can.nightly.comparison import Comparison
from kdgat.can.nightly.new_recordings import NewRecordings, NightlyError
from kdgat.can.nightly.run import (
    IN_SERVICE,
    NEW,
    NIGHTLY_FILE,
    NightlyDirectory,
    NightlyRecord,
    NightlyReport,
    idle_run,
    run_config,
)
from kdgat.registry.entry import ModelEntry, ServiceChange
from kdgat.registry.promotion import Promotion, PromotionRule
from kdgat.registry.registry import Registry
from kdgat.run.directory import OutputDirectory, RunError
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
    )
    text = report.markdown()
    for words in (
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


def test_a_quiet_night_still_names_what_it_refused() -> None:
    sentence, text = idle_run("cars", NewRecordings(recordings={}, refused={"c.csv": "broken"}), "cars-old")
    assert sentence == "nothing new: recordings: 1 refused; cars-old stays in service"
    assert "`c.csv`: broken" in text
    assert idle_run("cars", NewRecordings(recordings={}), None)[0].endswith("no model is in service")


def test_a_quiet_night_names_who_holds_the_model_in_service() -> None:
    held = ServiceChange(
        **{"kind": "hold", "family": "can", "dataset": "cars", "previous": "m", "model": "m", "hold": True},
        **{"reason": "it beeps", "by": "ann", "when": "2026-01-01T00:00:00+00:00"},
    )
    sentence, text = idle_run("cars", NewRecordings(recordings={}), "m", held)
    assert sentence.endswith("m stays in service, held by ann since 2026-01-01T00:00:00+00:00: it beeps")
    assert "it beeps" in text
