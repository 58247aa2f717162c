"""Lightning's TensorBoard, MLflow and Weights & Biases: where each writes, and which of its runs a fit continues."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kdgat.stage import RunDirectory
from kdgat.training.loggers.beside import End

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

INIT_S: Final = 30.0  # that a server may take to open a run
MLFLOW_FILE: Final = "mlflow.db"  # beside the folder of the stages, where no server is named


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

    @property
    def project(self) -> str:
        """Name what runs of the family are filed under, where nobody else does."""
        return f"kdgat-{self.directory.read_spec().family}"

    def parameters(self) -> dict[str, Any]:
        """Return what the stage was asked to do."""
        spec = self.directory.read_spec()
        own = {key: getattr(spec, key) for key in ("family", "stage", "scale", "seed")}
        return {**own, "identity": spec.identity(), **spec.config}


def open_logger(name: str, place: Place, run: str, step: int) -> Logger:
    """Open a new run, where `run` is empty, or resume that one from this step on; `version` names the run."""
    from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger  # takes seconds

    match name:
        case "tensorboard":
            folder = place.directory.path / "tensorboard" / place.fit
            # A kill between sending a row and noting that leaves it to be sent again: the first one is purged.
            return TensorBoardLogger(folder, name="", version="", default_hp_metric=False, purge_step=step)
        case "mlflow":
            return MLFlowLogger(
                experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", place.project),
                run_name=place.name,
                tracking_uri=os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place.run / MLFLOW_FILE}",
                run_id=run or None,
            )
        case "wandb":
            import wandb

            return WandbLogger(
                name=place.name,
                save_dir=place.directory.path,
                project=os.environ.get("WANDB_PROJECT", place.project),
                id=run or secrets.token_hex(8),
                group=place.run.name,
                settings=wandb.Settings(console="off", init_timeout=INIT_S),
            )
    raise ValueError(f"no logger {name!r}")


def close_logger(name: str, opened: Any, end: End) -> None:
    """Write out what is left, and say how training ended unless it is resumed later."""
    if name == "wandb":
        opened.experiment.finish(exit_code=int(end == "failed"))
    elif end != "paused" or name == "tensorboard":
        opened.finalize(end)
