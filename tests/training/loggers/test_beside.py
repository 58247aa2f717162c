"""Training takes no notice of its loggers: what they do, they do in another process, which ends with it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kdgat.base import ConfigurationError
from kdgat.stage import RunDirectory
from kdgat.training import Deadline, TrainingConfig
from kdgat.training.loggers import End, Loggers, beside
from tests.support.optional import need_package
from tests.support.processes import is_gone
from tests.support.waiting import wait_until
from tests.training.graph_training import CONFIG, CurriculumSource, train
from tests.training.loggers.scene import HISTORY, make_directory

SHORT = CONFIG.model_copy(update={"max_epochs": 2})
KILL_SELF = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
HANG = "import time; time.sleep(3600)"
TRAIN_FOREVER = """
import sys, time
from kdgat.stage import RunDirectory
from kdgat.training.loggers import Loggers
Loggers(["tensorboard"], RunDirectory(sys.argv[1])).follow()
time.sleep(3600)
"""


def with_loggers(*names: str) -> TrainingConfig:
    return SHORT.model_copy(update={"loggers": names})


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == beside.__name__]


def test_without_a_logger_no_process_starts(tmp_path: Path) -> None:
    none = Loggers([], make_directory(tmp_path, 3))
    none.follow()  # which would fail this test
    none.close(3, "success")


def test_for_a_fit_that_has_nothing_to_tell_no_process_starts(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, 3)
    Loggers(["mlflow"], directory).close(3, "paused")  # the next attempt tells
    noted = {"": {"mlflow": {"run": "a", "rows": 3, "end": "success"}}}
    (tmp_path / "loggers.json").write_text(json.dumps(noted))
    Loggers(["mlflow"], directory).close(3, "success")


def test_where_no_process_can_start_that_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    Loggers(["mlflow"], make_directory(tmp_path, 3)).close(3, "success")
    [warning] = warnings_of(caplog)
    assert "logger mlflow cannot be started (Resource temporarily unavailable): training goes on" in warning


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


def test_a_fit_that_is_asked_to_leave_saves_before_it_looks_at_loggers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []

    def close(loggers: Loggers, num_rows: int, end: End) -> None:
        heard.append((num_rows, end, len(list((tmp_path / "checkpoints").glob("*.pt")))))

    monkeypatch.setattr(Loggers, "follow", lambda loggers: None)
    monkeypatch.setattr(Loggers, "close", close)
    ask = lambda source, epoch, metrics: os.kill(os.getpid(), signal.SIGTERM)  # noqa: E731
    with monkeypatch.context() as patched:
        patched.setattr(CurriculumSource, "on_epoch_end", ask)
        assert train(make_directory(tmp_path), with_loggers("tensorboard"), Deadline()).paused
    assert not train(RunDirectory(tmp_path), with_loggers("tensorboard"), Deadline()).paused
    assert heard == [(1, "paused", 1), (2, "success", 2)]


@pytest.mark.processes
class TestProcess:
    @pytest.fixture(autouse=True)
    def installed(self) -> None:
        need_package("tensorboard")

    @pytest.fixture
    def tensorboard_does(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
        """Return what makes other processes do this when they import TensorBoard; its file is there once one has."""

        def replace(code: str) -> Path:
            package, came = tmp_path / "packages" / "tensorboard", tmp_path / "came"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text(f"open({str(came)!r}, 'w').close()\n{code}\n")
            monkeypatch.setenv("PYTHONPATH", str(package.parent))
            return came

        return replace

    def test_training_with_it_has_the_rows_of_metrics_and_the_weights_of_training_without(self, tmp_path: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        with_it, without = make_directory(tmp_path / "with"), make_directory(tmp_path / "without")
        train(with_it, with_loggers("tensorboard"), Deadline())
        train(without, SHORT, Deadline())
        found = EventAccumulator(str(with_it.path / "tensorboard"))
        found.Reload()
        rows = [(row["step"], pytest.approx(row["train_loss"])) for row in with_it.read_metrics()]
        assert [(one.step, one.value) for one in found.Scalars("train_loss")] == rows
        assert with_it.weights_path.read_bytes() == without.weights_path.read_bytes()
        assert with_it.work.ranks_mib > 50

    @pytest.mark.parametrize(
        ("does", "says"),
        [
            (KILL_SELF, "logger tensorboard has lost its process, which ended with status -9"),
            (HANG, "logger tensorboard does not answer in time"),
        ],
    )
    def test_training_is_over_though_it_dies_or_hangs_and_says_so_once(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        tensorboard_does: Callable[[str], Path],
        does: str,
        says: str,
    ) -> None:
        came = tensorboard_does(does)
        loggers = Loggers(["tensorboard"], make_directory(tmp_path / "stage", 3))
        loggers.follow()
        wait_until(came.exists, "the logger to be opened")
        if does == HANG:
            monkeypatch.setattr(beside, "END_S", 0.2)
        loggers.close(3, "success")
        [warning] = warnings_of(caplog)
        assert warning == f"{says}: its last rows are in metrics.jsonl alone"
        monkeypatch.delenv("PYTHONPATH")
        monkeypatch.setattr(beside, "END_S", 300.0)
        Loggers(["tensorboard"], RunDirectory(tmp_path / "stage")).close(3, "success")
        assert '"rows": 3' in (tmp_path / "stage" / "loggers.json").read_text()

    @pytest.mark.parametrize("why", ["no time is left", "asked to leave", "paused"])
    def test_nobody_waits_for_it_where_training_has_to_leave(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text(HANG)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(beside, "LEAVE_S", 0.01)
        monkeypatch.setattr(beside, "END_S", 3600.0)
        silent = Loggers(
            ["tensorboard"],
            make_directory(tmp_path / "stage", 3),
            spare_s=lambda: -3.0 if why == "no time is left" else 1000.0,
            is_stopped=lambda: why == "asked to leave",
        )
        silent.follow()
        began = time.monotonic()
        silent.close(3, "paused" if why == "paused" else "failed")
        assert time.monotonic() - began < 60.0, "seconds, on a machine that is busy"

    def test_it_ends_with_training_that_is_killed_though_it_hangs(
        self, tmp_path: Path, tensorboard_does: Callable[[str], Path]
    ) -> None:
        came = tensorboard_does(HANG)
        directory = make_directory(tmp_path / "stage", 3)
        training = subprocess.Popen([sys.executable, "-c", TRAIN_FOREVER, str(directory.path)])
        wait_until(came.exists, "the logger to be opened")
        children = Path(f"/proc/{training.pid}/task/{training.pid}/children")
        [follower] = children.read_text().split()
        assert b"kdgat.training.loggers.follow" in Path(f"/proc/{follower}/cmdline").read_bytes()
        training.kill()
        training.wait()
        wait_until(lambda: is_gone(follower), "its end")

    def test_signals_to_all_processes_of_a_stage_are_left_to_training(self, tmp_path: Path) -> None:
        loggers = Loggers(["tensorboard"], make_directory(tmp_path, 3))
        loggers.follow()
        state = tmp_path / "loggers.json"
        wait_until(lambda: state.exists() and '"rows": 3' in state.read_text(), "the rows")
        assert loggers._process is not None
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGINT):
            os.kill(loggers._process.pid, number)
            time.sleep(0.1)  # each is handled: those that wait together come in the order of their numbers
        loggers.close(3, "success")
        assert '"end": "success"' in state.read_text()


@pytest.mark.processes
class TestServices:
    """Of the libraries themselves, whose import and first start take tens of seconds on a busy machine."""

    def close(self, directory: RunDirectory, name: str, num_rows: int, end: End) -> None:
        make_directory(directory.path, num_rows)
        loggers = Loggers([name], directory)
        loggers.follow()
        loggers.close(num_rows, end)

    def fit_twice(self, directory: RunDirectory, name: str) -> None:
        self.close(directory, name, 2, "paused")
        second = int(time.time())  # by which wandb names folders: no two attempts of a stage begin in the same one
        wait_until(lambda: int(time.time()) > second, "another second")
        self.close(directory, name, 3, "success")

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("LEAVE_S", "END_S"):
            monkeypatch.setattr(beside, name, 300.0)

    def test_mlflow_goes_on_with_its_run_and_gets_what_an_unreachable_server_missed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        need_package("mlflow")
        from mlflow.tracking import MlflowClient

        directory = make_directory(tmp_path / "out" / "stages" / "line")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        self.close(directory, "mlflow", 2, "paused")
        assert directory.log_path.read_text().count("logger mlflow fails") == 1
        monkeypatch.delenv("MLFLOW_TRACKING_URI")
        self.fit_twice(directory, "mlflow")
        client = MlflowClient(f"sqlite:///{tmp_path / 'out' / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("kdgat-toy")
        [run] = client.search_runs([experiment.experiment_id])
        assert (run.info.run_name, run.info.status) == ("out/line", "FINISHED")
        assert run.data.params["training/max_epochs"] == "2"
        found = client.get_metric_history(run.info.run_id, "validation_loss")
        assert [(one.step, one.value) for one in found] == [(row["step"], row["validation_loss"]) for row in HISTORY]

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
