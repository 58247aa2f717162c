"""Loggers get every row once, whatever happens to them and to training, and training takes no notice of them."""

import json
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, Logger

from kdgat.base import ConfigurationError
from kdgat.stage import RunDirectory, StageSpec
from kdgat.training import Deadline, TrainingConfig, logger_services, loggers
from kdgat.training.logger_services import Place
from kdgat.training.loggers import Loggers
from tests.support.optional import need_package
from tests.support.waiting import wait_until
from tests.training.graph_training import CONFIG, CurriculumSource, train

HISTORY = [{"epoch": n, "step": 10 * (n + 1), "validation_loss": 1.0 / (n + 1), "is_best": True} for n in range(3)]
SHORT = CONFIG.model_copy(update={"max_epochs": 2})


def make_directory(path: Path) -> RunDirectory:
    config = {"training": {"max_epochs": 2, "gradient_clip": None}}
    return RunDirectory(path).create(StageSpec(family="toy", stage="line", seed=7, config=config))


def with_loggers(*names: str) -> TrainingConfig:
    return SHORT.model_copy(update={"loggers": names})


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "kdgat.training.loggers"]


class Service(logger_services.Service):
    """Lightning's CSV logger, opened by what a test does before."""

    def __init__(self, before: Callable[[], Any]) -> None:
        self.before = before

    def open(self, place: Place, run: str, step: int) -> Logger:
        self.before()
        return CSVLogger(place.directory.path / "csv", name="", version="", flush_logs_every_n_steps=1)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what puts a service in the place of TensorBoard."""
    return lambda before: monkeypatch.setattr(loggers, "SERVICES", {"tensorboard": Service(before)})


class TestTensorBoard:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        need_package("tensorboard")

    def read_back(self, folder: Path, name: str) -> list[tuple[int, float]]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(folder))
        found.Reload()
        return [(one.step, one.value) for one in found.Scalars(name)]

    def test_each_row_is_there_once_though_an_attempt_went_back_behind_it(self, tmp_path: Path) -> None:
        directory = make_directory(tmp_path)
        first = Loggers(["tensorboard"], directory)
        first.send(HISTORY[:1])
        first.send(HISTORY[:2])
        first.close(HISTORY[:2], "paused")
        again = Loggers(["tensorboard"], directory)
        again.send(HISTORY[:1])  # from a checkpoint before the second epoch's end
        again.send(HISTORY[:2])
        again.close(HISTORY, "success")
        assert self.read_back(tmp_path / "tensorboard", "validation_loss") == [
            (10, 1.0), (20, 0.5), (30, pytest.approx(1 / 3)),
        ]  # fmt: skip

    def test_a_row_that_was_sent_and_not_noted_before_a_kill_is_there_once(self, tmp_path: Path) -> None:
        directory = make_directory(tmp_path)
        Loggers(["tensorboard"], directory).send(HISTORY[:2])
        (tmp_path / "loggers.json").write_text(json.dumps({"": {"tensorboard": {"run": "", "rows": 1}}}))
        Loggers(["tensorboard"], directory).close(HISTORY, "success")
        assert [step for step, _ in self.read_back(tmp_path / "tensorboard", "validation_loss")] == [10, 20, 30]

    def test_fits_of_one_stage_are_runs_beside_each_other(self, tmp_path: Path) -> None:
        for fit in ("small", "large"):
            Loggers(["tensorboard"], make_directory(tmp_path), fit).close(HISTORY, "success")
        for fit in ("small", "large"):
            assert len(self.read_back(tmp_path / "tensorboard" / fit, "epoch")) == 3

    def test_training_with_it_has_the_rows_of_metrics_and_the_weights_of_training_without(self, tmp_path: Path) -> None:
        with_it, without = make_directory(tmp_path / "with"), make_directory(tmp_path / "without")
        train(with_it, with_loggers("tensorboard"), Deadline())
        train(without, SHORT, Deadline())
        rows = [(row["step"], pytest.approx(row["train_loss"])) for row in with_it.read_metrics()]
        assert self.read_back(with_it.path / "tensorboard", "train_loss") == rows
        assert with_it.weights_path.read_bytes() == without.weights_path.read_bytes()

    def test_one_that_cannot_write_is_one_warning_and_ends_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        directory = make_directory(tmp_path)
        (tmp_path / "tensorboard").write_text("in its place")
        assert not train(directory, with_loggers("tensorboard"), Deadline()).paused
        [warning] = warnings_of(caplog)
        assert "logger tensorboard fails" in warning
        (tmp_path / "tensorboard").unlink()
        Loggers(["tensorboard"], directory).close(directory.read_metrics(), "success")
        assert len(self.read_back(tmp_path / "tensorboard", "train_loss")) == 2


def test_one_that_draws_random_numbers_changes_no_weight(tmp_path: Path, serve: Callable[..., None]) -> None:
    serve(lambda: (random.random(), np.random.rand()))
    with_it, without = make_directory(tmp_path / "with"), make_directory(tmp_path / "without")
    train(with_it, with_loggers("tensorboard"), Deadline())
    train(without, SHORT, Deadline())
    assert (with_it.path / "csv" / "metrics.csv").is_file()
    assert with_it.weights_path.read_bytes() == without.weights_path.read_bytes()


def test_one_that_does_not_answer_holds_nothing_up_and_gets_its_rows_later(
    tmp_path: Path,
    serve: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("OPEN_S", "WAIT_S", "END_S"):
        monkeypatch.setattr(loggers, name, 0.05)
    caplog.set_level(logging.INFO, "kdgat.training.loggers")
    answers = threading.Event()
    serve(answers.wait)
    directory = make_directory(tmp_path)
    slow = Loggers(["tensorboard"], directory)
    slow.send(HISTORY[:1])
    slow.send(HISTORY[:2])
    assert [text for text in warnings_of(caplog) if "does not answer" in text] == warnings_of(caplog)
    assert len(warnings_of(caplog)) == 1
    answers.set()
    rows = tmp_path / "csv" / "metrics.csv"
    wait_until(
        lambda: (tmp_path / "loggers.json").is_file() and '"rows": 1' in (tmp_path / "loggers.json").read_text(),
        "a row",
    )
    slow.send(HISTORY[:2])  # training goes on, and its library might draw random numbers meanwhile
    assert len(rows.read_text().splitlines()) == 1 + 1
    monkeypatch.setattr(loggers, "END_S", 10.0)
    slow.close(HISTORY, "success")
    assert "has all rows again" in warnings_of(caplog)[-1]
    assert len(rows.read_text().splitlines()) == 1 + len(HISTORY)


@pytest.mark.parametrize("why", ["no time is left", "asked to leave before", "asked to leave meanwhile"])
@pytest.mark.parametrize("is_over", [False, True])
def test_nobody_waits_for_a_logger_where_training_has_to_leave(
    tmp_path: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch, why: str, is_over: bool
) -> None:
    monkeypatch.setattr(loggers, "LEAVE_S", 0.01)
    asked, left, answered = threading.Event(), threading.Event(), []

    def hang() -> None:
        asked.set()
        answered.append(left.wait(5.0))

    serve(hang)
    if why == "asked to leave before":
        asked.set()
    spare_s = -3.0 if why == "no time is left" else 1000.0
    silent = Loggers(
        ["tensorboard"],
        make_directory(tmp_path),
        spare_s=lambda: spare_s,
        is_stopped=lambda: why != "no time is left" and asked.is_set(),
    )
    if is_over:
        silent.close(HISTORY, "paused")
    else:
        silent.send(HISTORY)
    assert answered == []
    left.set()


def test_a_fit_that_is_asked_to_leave_saves_before_it_looks_at_loggers(
    tmp_path: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    serve(lambda: saved.append(len(list((tmp_path / "checkpoints").glob("*.pt")))))
    ask = lambda source, epoch, metrics: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(CurriculumSource, "on_epoch_end", ask)
        directory = make_directory(tmp_path)
        assert train(directory, with_loggers("tensorboard"), Deadline()).paused
    wait_until(lambda: saved, "the logger to be opened")
    assert saved == [1]


@pytest.mark.parametrize(("end", "warnings"), [("failed", 0), ("success", 1)])
def test_closing_raises_nothing_where_the_gpu_does_not_tell_its_random_state(
    tmp_path: Path,
    serve: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    end: loggers.End,
    warnings: int,
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(loggers, "capture_random_state", fail)
    serve(lambda: None)
    Loggers(["tensorboard"], make_directory(tmp_path)).close(HISTORY, end)
    assert len(warnings_of(caplog)) == warnings
    assert (tmp_path / "csv" / "metrics.csv").is_file() is (end == "failed")


def test_an_attempt_after_a_hard_kill_tells_a_run_once_that_training_has_ended(
    tmp_path: Path, serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    serve(lambda: None)
    monkeypatch.setattr(Service, "run_of", lambda service, opened: "the run")
    monkeypatch.setattr(Service, "close", lambda service, opened, end: told.append(end))
    directory = make_directory(tmp_path)
    Loggers(["tensorboard"], directory).send(HISTORY)  # and then the process is killed
    for end in ("paused", "failed", "success", "success"):
        Loggers(["tensorboard"], directory).close(HISTORY, end)
    assert told == ["failed", "success"]


def test_a_missing_package_is_said_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kdgat.training.config.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="mlflow is not installed: pip install mlflow-skinny"):
        train(make_directory(tmp_path), with_loggers("mlflow"))
    assert not (tmp_path / "checkpoints").exists()


def test_a_logger_is_no_part_of_a_computation_and_named_once() -> None:
    assert TrainingConfig(loggers=["wandb"]).computation() == TrainingConfig().computation()
    assert "loggers" not in TrainingConfig().model_dump()
    with pytest.raises(ValueError, match="stands twice"):
        TrainingConfig(loggers=["wandb", "wandb"])


@pytest.mark.processes
class TestServices:
    """Of the libraries themselves, whose import and first start take tens of seconds on a busy machine."""

    def fit_twice(self, directory: RunDirectory, name: str) -> None:
        first = Loggers([name], directory)
        first.send(HISTORY[:2])
        first.close(HISTORY[:2], "paused")
        second = int(time.time())  # by which wandb names folders: no two attempts of a stage begin in the same one
        wait_until(lambda: int(time.time()) > second, "another second")
        Loggers([name], directory).close(HISTORY, "success")

    @pytest.fixture
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("OPEN_S", "WAIT_S", "END_S"):
            monkeypatch.setattr(loggers, name, 300.0)

    @pytest.mark.usefixtures("patient")
    def test_mlflow_goes_on_with_its_run_and_gets_what_an_unreachable_server_missed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        need_package("mlflow")
        from mlflow.tracking import MlflowClient

        directory = make_directory(tmp_path / "out" / "stages" / "line")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        unreachable = Loggers(["mlflow"], directory)
        unreachable.send(HISTORY[:1])
        unreachable.send(HISTORY[:2])
        unreachable.close(HISTORY[:2], "paused")
        assert len(warnings_of(caplog)) == 1
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        self.fit_twice(directory, "mlflow")
        client = MlflowClient(f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("kdgat-toy")
        [run] = client.search_runs([experiment.experiment_id])
        assert (run.info.run_name, run.info.status) == ("out/line", "FINISHED")
        assert run.data.params["training/max_epochs"] == "2"
        found = client.get_metric_history(run.info.run_id, "validation_loss")
        assert [(one.step, one.value) for one in found] == [(row["step"], row["validation_loss"]) for row in HISTORY]

    @pytest.mark.usefixtures("patient")
    def test_wandb_offline_keeps_every_row_once_under_one_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        need_package("wandb")
        monkeypatch.setenv("WANDB_MODE", "offline")
        self.fit_twice(make_directory(tmp_path), "wandb")
        files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
        assert len(files) == 2
        assert len({path.name for path in files}) == 1
        rows = [row for path in files for row in wandb_rows(path)]
        assert [(row["trainer/global_step"], row["validation_loss"]) for row in rows] == [
            (row["step"], row["validation_loss"]) for row in HISTORY
        ]


def wandb_rows(path: Path) -> list[Mapping[str, Any]]:
    """Read the rows of a run that wandb keeps to send it later."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(path))
    rows = []
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append(
                {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
    return rows
