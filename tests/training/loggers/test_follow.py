"""A logger gets every row once, whatever happens to it and to training."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, Logger

from kdgat.stage import RunDirectory
from kdgat.training.loggers import End, follow
from kdgat.training.loggers.follow import Copy
from kdgat.training.loggers.services import Place
from tests.support.optional import need_package
from tests.training.loggers.scene import HISTORY, make_directory


def copy_of(directory: RunDirectory, fit: str = "", name: str = "tensorboard") -> Copy:
    return Copy(name, Place(directory, fit))


def csv_rows(directory: RunDirectory) -> int:
    path = directory.path / "csv" / "metrics.csv"
    return len(path.read_text().splitlines()) - 1 if path.exists() else 0


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what puts Lightning's CSV logger in the place of all, opened by what a test does before."""

    def replace(before: Callable[[str], Any]) -> None:
        def open_logger(name: str, place: Place, run: str, step: int) -> Logger:
            before(name)
            return CSVLogger(place.directory.path / "csv", name="", version="", flush_logs_every_n_steps=1)

        monkeypatch.setattr(follow, "open_logger", open_logger)

    return replace


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        need_package("tensorboard")

    def read_back(self, folder: Path, name: str = "validation_loss") -> list[tuple[int, float]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(folder))
        found.Reload()
        return [(one.step, one.value) for one in found.Scalars(name)]

    def test_each_row_is_there_once_though_an_attempt_went_back_behind_it(self, tmp_path: Path) -> None:
        steps: list[tuple[int, End | None]] = [(1, None), (2, None), (2, "paused")]
        for attempt in (steps, [(1, None), (2, None), (3, "success")]):  # from a checkpoint before the second epoch
            copy = copy_of(make_directory(tmp_path))
            for num_rows, end in attempt:
                make_directory(tmp_path, num_rows)
                copy.update(end)
        assert self.read_back(tmp_path / "tensorboard") == [(10, 1.0), (20, 0.5), (30, pytest.approx(1 / 3))]

    def test_a_row_that_was_sent_and_not_noted_before_a_kill_is_there_once(self, tmp_path: Path) -> None:
        copy_of(make_directory(tmp_path, 2)).update()
        (tmp_path / "loggers.json").write_text(json.dumps({"": {"tensorboard": {"run": "", "rows": 1}}}))
        copy_of(make_directory(tmp_path, 3)).update("success")
        assert [step for step, _ in self.read_back(tmp_path / "tensorboard")] == [10, 20, 30]

    def test_fits_of_one_stage_are_runs_beside_each_other(self, tmp_path: Path) -> None:
        for num_rows, fit in enumerate(("small", "large"), start=2):
            copy_of(make_directory(tmp_path, num_rows, fit), fit).update("success")
        assert len(self.read_back(tmp_path / "tensorboard" / "small", "epoch")) == 2
        assert len(self.read_back(tmp_path / "tensorboard" / "large", "epoch")) == 3

    def test_one_that_cannot_write_is_one_warning_and_gets_its_rows_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, follow.logger.name)
        monkeypatch.setattr(follow, "RETRY_S", 0.0)
        (tmp_path / "tensorboard").write_text("in its place")
        copy = copy_of(make_directory(tmp_path, 1))
        for num_rows in (1, 2):
            make_directory(tmp_path, num_rows)
            copy.update()
        [warning] = caplog.messages
        assert "logger tensorboard fails" in warning
        (tmp_path / "tensorboard").unlink()
        copy.update("success")
        assert caplog.messages[1:] == ["logger tensorboard has all rows again"]
        assert len(self.read_back(tmp_path / "tensorboard")) == 2


def test_a_row_that_is_being_written_is_sent_when_it_is_whole(tmp_path: Path, serve: Callable[..., None]) -> None:
    serve(lambda name: None)
    directory = make_directory(tmp_path, 1)
    copy = copy_of(directory)
    row = json.dumps(HISTORY[1]) + "\n"
    for text, num_rows in ((row[:20], 1), (row[20:], 2)):
        with directory.metrics_path.open("a") as file:
            file.write(text)
        copy.update()
        assert csv_rows(directory) == num_rows


def test_one_that_failed_is_left_alone_for_some_minutes_and_at_the_end_asked_again(
    tmp_path: Path, serve: Callable[..., None]
) -> None:
    asked = []

    def fail(name: str) -> None:
        asked.append(name)
        raise ConnectionError("no server")

    serve(fail)
    copy = copy_of(make_directory(tmp_path, 1))
    copy.update()
    copy.update()
    assert len(asked) == 1
    copy.update("success")
    assert len(asked) == 2


def test_an_attempt_after_a_hard_kill_tells_a_run_once_that_training_has_ended(
    tmp_path: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    serve(lambda name: None)
    monkeypatch.setattr(CSVLogger, "version", "the run")
    monkeypatch.setattr(follow, "close_logger", lambda name, opened, end: told.append(end))
    directory = make_directory(tmp_path, 3)
    copy_of(directory).update()  # and then the process is killed
    ends: list[End] = ["paused", "failed", "success", "success"]
    for end in ends:
        copy_of(directory).update(end)
    assert told == ["failed", "success"]


class TestFeed:
    def feed(self, said: bytes, *fed: Copy) -> None:
        """Feed loggers while training says this, and dies."""
        ours, theirs = os.pipe()
        os.write(theirs, said)
        os.close(theirs)
        follow.feed(fed, ours)
        os.close(ours)

    def test_all_rows_are_sent_before_the_end_is_told(self, tmp_path: Path, serve: Callable[..., None]) -> None:
        serve(lambda name: None)
        directory = make_directory(tmp_path, 3)
        self.feed(b"success", copy_of(directory))
        assert csv_rows(directory) == 3
        assert json.loads((tmp_path / "loggers.json").read_bytes()) == {
            "": {"tensorboard": {"run": "", "rows": 3, "end": "success"}}
        }

    def test_where_training_died_nothing_is_told(self, tmp_path: Path, serve: Callable[..., None]) -> None:
        serve(lambda name: None)
        self.feed(b"", copy_of(make_directory(tmp_path, 3)))
        assert not (tmp_path / "loggers.json").exists()

    def test_one_that_has_failed_comes_last(self, tmp_path: Path, serve: Callable[..., None]) -> None:
        order: list[str] = []
        serve(order.append)
        directory = make_directory(tmp_path, 3)
        broken = copy_of(directory, name="mlflow")
        broken.fails = True
        self.feed(b"success", broken, copy_of(directory))
        assert order == ["tensorboard", "mlflow"]
