"""What a weights file of the family says about its model and graphs, and whether training may start from it."""

from pathlib import Path
from typing import Any

from kdgat.lap.errors import StartError
from kdgat.lap.names import FAMILY
from kdgat.lap.sections import FEATURE_VERSION, TrainingStageConfig, read_sections
from kdgat.training.weights import first_difference, read_description


def describe_model(config: TrainingStageConfig) -> dict[str, Any]:
    """Return what a weights file says about the model and the graphs that it reads, as plain data."""
    return {
        "family": FAMILY,
        "kind": config.model.kind,
        "model": read_sections(config.model),
        "graph": config.graph.model_dump(mode="json", exclude={"witnesses"}),  # which only the loss reads
        "feature_version": FEATURE_VERSION,
    }


def check_start(path: Path, config: TrainingStageConfig) -> None:
    """Check that a stage of this configuration may start from these weights.

    Raises:
        StartError: naming the key in which model or graphs differ from those of the weights.
        WeightsError: if the file is damaged.
    """
    different = first_difference(read_description(path)["config"], describe_model(config))
    if different:
        raise StartError(
            f"{path} cannot be started from, {different}: keep the configuration of that model, or start from scratch"
        )
