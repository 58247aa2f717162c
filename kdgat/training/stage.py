"""The end of every stage that trains: fit, hand on the best weights, report what they are worth."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from lightning import LightningModule
from torch import nn

from kdgat.stage import Finished, Outcome, RunDirectory, StageSpec
from kdgat.training.config import TrainingConfig
from kdgat.training.fit import fit
from kdgat.training.source import EpochSource
from kdgat.training.weights import save_weights

logger = logging.getLogger(__name__)

WEIGHTS: Final = "weights"  # the artifact of a fit, and the folder that holds those of several


def train_stage(
    module: LightningModule,
    model: nn.Module,
    train: EpochSource,
    validation: EpochSource,
    training: TrainingConfig,
    spec: StageSpec,
    directory: RunDirectory,
    *,
    description: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
    fit_name: str = "",
    weights_directory: RunDirectory | None = None,
) -> Outcome:
    """Fit a model and write its best weights.

    Args:
        module: what is trained: the objective around `model`.
        model: whose weights are handed on.
        train, validation: sources of batches.
        training: settings of the fit.
        spec, directory: of the stage.
        description: plain data from which the model can be built again, and by which weights to start from are checked.
        metadata: what else the weights file says, beside stage, seed, metric and epoch.
        fit_name: of this fit, where the stage has several; each has its own checkpoints.
        weights_directory: where the weights go; by default into `directory`.

    Returns:
        Paused, or Finished with the best epoch's metrics, `best_epoch`, `epochs` and `num_parameters`, and the
        artifacts `weights` and `model` relative to `directory`.
    """
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    name = fit_name or spec.stage
    logger.info("%s %s: %s parameters", name, spec.scale, f"{num_parameters:,}")
    result = fit(module, train, validation, training, directory, spec.seed, name=fit_name)
    if result.paused:
        return result.as_paused()
    place = weights_directory or directory
    save_weights(
        place,
        model,
        description,
        {
            "stage": name,
            "seed": spec.seed,
            "monitor": training.monitor,
            "best_epoch": result.best_epoch,
            "best_metric": result.best_metric,
            "num_parameters": num_parameters,
            **({"attributes": result.attributes} if result.attributes else {}),
            **(metadata or {}),
        },
    )
    numbers = {
        "best_epoch": float(result.best_epoch),
        "epochs": float(result.epochs),
        "num_parameters": float(num_parameters),
    }
    return Finished(
        metrics={**result.metrics, **numbers},
        artifacts={
            WEIGHTS: str(place.weights_path.relative_to(directory.path)),
            "model": str(place.model_config_path.relative_to(directory.path)),
        },
    )


class SeveralFits:
    """What the fits of one stage leave: weights in a folder of each, and numbers under its name."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.metrics: dict[str, float] = {}
        self.artifacts: dict[str, str] = {}

    def directory_of(self, name: str) -> RunDirectory:
        """Make and return the folder of a fit; OwnerLostError if another process took the stage over."""
        self.directory.check_owner()
        path = self.directory.path / WEIGHTS / name
        path.mkdir(parents=True, exist_ok=True)
        return RunDirectory(path)

    def add(self, name: str, outcome: Finished, metrics: Mapping[str, float] | None = None) -> None:
        """Add the weights of a fit as `weights-<name>`, and these metrics, or all, each as `<name>_<metric>`."""
        metrics = outcome.metrics if metrics is None else metrics
        self.metrics |= {f"{name}_{metric}": value for metric, value in metrics.items()}
        self.artifacts[f"{WEIGHTS}-{name}"] = outcome.artifacts[WEIGHTS]
