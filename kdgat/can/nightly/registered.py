"""A finished run as a model of a registry: what evaluating it needs, and nothing of the data it was trained on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kdgat.base.configuration import execution_keys, without_keys
from kdgat.can.config import CanConfig
from kdgat.can.evaluation.run import SCORES_PREFIX, FinishedCanRun
from kdgat.canbus.features import VALIDATION
from kdgat.canbus.summary import DataSummary
from kdgat.family.night import ModelSource, content_hash
from kdgat.run import OutputDirectory
from kdgat.training import TrainingConfig

CATALOG_FILE: Final = "catalog.yaml"
HANDED_ON: Final = ("weights", "model", "data_summary", "injection_summary", f"{SCORES_PREFIX}{VALIDATION}")
# What says where things lie, or how jobs ask for room: two runs that differ in nothing else are the same one.
NOT_COMPARED: Final = (
    *("preset", "start_from", "resources", "data.data_root", "data.catalog", "data.leave_out", "data.backend"),
    *execution_keys(CanConfig),
    *(f"training_of.*.{key}" for key in execution_keys(TrainingConfig)),
)


def model_source(run_directory: Path) -> ModelSource:
    """Collect what of a finished run makes a model: `kdgat evaluate can --run` then takes its directory as a run.

    Raises:
        RunError: if the run has not finished.
    """
    run = FinishedCanRun(OutputDirectory(run_directory))
    config = run.index.config
    if run.catalog is not None:
        config = {**config, "data": {**config["data"], "catalog": CATALOG_FILE}}
    summary = run.summary_of("data_summary", DataSummary) or DataSummary()
    recordings = {f"{row.role}/{row.scenario}/{row.name}": row.content_hash for row in summary.recordings}
    hashed = config_hash(run.index.config)
    source = ModelSource.of_run(run, HANDED_ON, config, config_hash=hashed, recordings=recordings)
    if run.catalog is not None:
        source.files[CATALOG_FILE] = Path(run.catalog)
    return source


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash a configuration (16 hex digits) without what only says where things lie, and what changes no result."""
    return content_hash(without_keys(config, NOT_COMPARED))[:16]
