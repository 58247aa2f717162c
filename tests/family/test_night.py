"""Runs, records and reports of nights are found, kept and removed; one night at a time."""

import errno
import os
from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.can.nightly.new_recordings import NewRecordings
from kdgat.can.nightly.report import idle_run
from kdgat.can.nightly.run import choose_run
from kdgat.family.night import NIGHTLY_FILE, NightlyDirectory, NightlyRecord
from kdgat.run import OutputDirectory, RunError
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
    first, record = choose_run(directory, CONFIG, new_recordings(a="1"), "model")
    assert record.start == "model"
    assert choose_run(directory, CONFIG, new_recordings(a="1"), "model") == (first, record)
    moved = small_config(Path("elsewhere"))
    assert choose_run(directory, moved, new_recordings(a="1"), "model")[0] == first
    longer = small_config(Path("data"), "training.max_epochs=9")
    scratch, record = choose_run(
        directory, CONFIG, new_recordings(a="1"), None
    )  # asked for while the other is unfinished
    assert record.start is None
    others = [
        choose_run(directory, CONFIG, new_recordings(a="2"), "model")[0],
        choose_run(directory, longer, new_recordings(a="1"), "model")[0],
    ]
    assert len({first, scratch, *others}) == 4


def test_a_night_goes_on_with_an_unfinished_run_even_if_another_model_is_in_service_by_now(
    directory: NightlyDirectory,
) -> None:
    path, record = choose_run(directory, CONFIG, new_recordings(a="1"), "old")
    assert choose_run(directory, CONFIG, new_recordings(a="1"), "newer") == (path, record)
    directory.write(path, record.model_copy(update={"is_over": True}))
    assert choose_run(directory, CONFIG, new_recordings(a="1"), "newer")[0] != path


def test_the_run_of_the_last_completed_night_is_over(directory: NightlyDirectory) -> None:
    path, record = choose_run(directory, CONFIG, new_recordings(a="1"), None)
    other, _ = choose_run(directory, CONFIG, new_recordings(a="2"), None)
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


def test_a_run_in_which_somebody_has_a_file_open_stays_known_until_a_later_night_removes_it(
    directory: NightlyDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = over(directory, "night-1", "2026-01-01T00:00:00+00:00")
    unlink = os.unlink

    def refuse(path: str, **options: int) -> None:
        if str(path).endswith("train.h5"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        unlink(path, **options)

    with monkeypatch.context() as is_open:
        is_open.setattr(os, "unlink", refuse)
        with pytest.raises(OSError, match="stages cannot be removed"):
            directory.remove_run(run)
    assert {path.name for path in run.iterdir()} == {NIGHTLY_FILE, "stages", OutputDirectory(run).lock_path.name}
    assert directory.old_runs(0) == [run]
    directory.remove_run(run)
    assert not run.exists()


def test_one_night_at_a_time(directory: NightlyDirectory) -> None:
    with (
        directory.lock(),
        pytest.raises(UserError, match="is in use by pid"),
        NightlyDirectory(directory.path).lock(),
    ):
        pass


def test_a_damaged_record_of_a_run_is_named(directory: NightlyDirectory) -> None:
    path = over(directory, "night-1", "2026-01-01T00:00:00+00:00")
    (path / NIGHTLY_FILE).write_text("{")
    with pytest.raises(UserError, match=rf"{NIGHTLY_FILE} is damaged"):
        directory.records()


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
