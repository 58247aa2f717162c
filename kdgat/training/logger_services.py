"""Lightning's TensorBoard, MLflow and Weights & Biases: where each writes, and which of its runs a fit continues."""

from __future__ import annotations

import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from kdgat.stage import RunDirectory

INIT_S: Final = 30.0  # that a server may take to open a run
FOLDERS: Final = ("tensorboard", "wandb")  # of the run directory, that loggers write
MLFLOW_FILE: Final = "mlflow.db"  # beside the folder of the stages, where no server is named
WRITER_THREAD: Final = "_AsyncWriterThread"  # of TensorBoard
# What their libraries do unless told otherwise: try for minutes, and report to their makers.
ENVIRONMENT: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "DO_NOT_TRACK": "1",
}
End = Literal["success", "failed", "paused"]


@dataclass(frozen=True)
class Place:
    """What a logger is told of a fit."""

    directory: RunDirectory
    fit: str  # its name; empty where a stage has a single one

    @property
    def run(self) -> Path:
        """Return the output directory of the run, or the stage's own where it lies in none."""
        path = self.directory.path.absolute()
        return path.parent.parent if path.parent.name == "stages" else path

    @property
    def name(self) -> str:
        """Name the fit as people know it: run, stage, fit."""
        return "/".join(filter(None, (self.run.name, self.directory.path.name, self.fit)))

    def parameters(self) -> dict[str, Any]:
        """Return what the stage was asked to do."""
        spec = self.directory.read_spec()
        own = {key: getattr(spec, key) for key in ("family", "stage", "scale", "seed")}
        return {**own, "identity": spec.identity(), **spec.config}


class Service(ABC):
    """How one kind of logger is opened, and which of its runs it is."""

    @abstractmethod
    def open(self, place: Place, run: str, step: int) -> Logger:
        """Open a new run, where `run` is empty, or go on with that one from this step on."""

    def run_of(self, opened: Logger) -> str:
        """Return the run's identifier; it may be made by this call."""
        return ""

    def close(self, opened: Logger, end: End) -> None:
        """Write out what is left, and say how training ended unless it goes on later."""
        if end != "paused":
            opened.finalize(end)


class _TensorBoard(Service):
    def open(self, place: Place, run: str, step: int) -> Logger:
        _silence(WRITER_THREAD)
        folder = place.directory.path / "tensorboard" / place.fit
        # A kill between sending a row and noting that leaves it to be sent again: the first one is purged.
        return TensorBoardLogger(folder, name="", version="", default_hp_metric=False, purge_step=step)

    def close(self, opened: Logger, end: End) -> None:
        opened.finalize(end)


def _silence(thread_class: str) -> None:
    """Let threads of a library die without a traceback: who hands rows to them gets the same error."""
    before = threading.excepthook
    if getattr(before, "silences", None) == thread_class:
        return

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if type(arguments.thread).__name__ != thread_class:
            before(arguments)

    hook.silences = thread_class  # type: ignore[attr-defined]
    threading.excepthook = hook


class _MLflow(Service):
    def open(self, place: Place, run: str, step: int) -> Logger:
        return MLFlowLogger(
            experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", f"kdgat-{place.directory.read_spec().family}"),
            run_name=place.name,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place.run / MLFLOW_FILE}",
            run_id=run or None,
        )

    def run_of(self, opened: Logger) -> str:
        return str(opened.version)


class _WeightsAndBiases(Service):
    def open(self, place: Place, run: str, step: int) -> Logger:
        import wandb

        return WandbLogger(
            name=place.name,
            save_dir=place.directory.path,
            project=os.environ.get("WANDB_PROJECT", f"kdgat-{place.directory.read_spec().family}"),
            id=run or secrets.token_hex(8),
            group=place.run.name,
            settings=wandb.Settings(console="off", init_timeout=INIT_S),
        )

    def run_of(self, opened: Logger) -> str:
        return str(opened.version)

    def close(self, opened: Logger, end: End) -> None:
        assert isinstance(opened, WandbLogger)
        opened.experiment.finish(exit_code=int(end == "failed"))  # else the next fit of this process adds to this run


SERVICES: Final[Mapping[str, Service]] = {
    "tensorboard": _TensorBoard(),
    "mlflow": _MLflow(),
    "wandb": _WeightsAndBiases(),
}
