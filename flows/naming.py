"""What flow runs and their artifacts are called, so that a list of either tells them apart."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from prefect.runtime import flow_run as runtime_flow_run

from kdgat.run import OutputDirectory, Run, RunConfig

MOST_OVERRIDES: Final = 4
LONGEST_VALUE: Final = 24


def training_name() -> str:
    """Name a run after its data, its preset and what was changed: `hcrl_sa quick training.max_epochs=1`.

    An output directory with another name than the data, which tells runs of the same data apart, is named as well.
    """
    parameters = runtime_flow_run.parameters
    config, out = _as_data(parameters["config"]), Path(parameters["out"]).name
    dataset, preset = _dataset(config) or out, parameters.get("preset") or config.get("preset")
    return " ".join([dataset, *([out] if out != dataset else []), *([preset] if preset else []), *_changes(parameters)])


def night_name() -> str:
    """Name a night after its date, here, and its data, or experiment: `night 2026-11-22 hcrl_sa`."""
    parameters = runtime_flow_run.parameters
    of = _dataset(_as_data(parameters["config"])) or Path(parameters["out"]).name
    planned: datetime = runtime_flow_run.scheduled_start_time or datetime.now(UTC)
    date = planned.astimezone().date().isoformat()
    return " ".join(["night", date, of, *_changes(parameters)])


def sweep_name() -> str:
    """Name a sweep after its output directory: `sweep rates`."""
    return f"sweep {Path(runtime_flow_run.parameters['out']).name}"


def evaluation_name() -> str:
    """Name an evaluation after its data and the detectors: `evaluation hcrl_sa of sa`."""
    parameters = runtime_flow_run.parameters
    run, dataset = parameters.get("run"), parameters.get("dataset")
    whose = Path(run).name if run else f"the model in service for {parameters.get('model_of') or dataset}"
    return " ".join(filter(None, ["evaluation", dataset, "of", whose]))


def artifact_scope(run: Run, output: OutputDirectory) -> str:
    """Return what a run's artifacts have in their keys: the dataset, or family and output where it has no name."""
    return run.config.dataset_name() or f"{run.family}-{output.path.name}"


def artifact_key(*parts: object) -> str:
    """Write a key as Prefect takes it: small letters, digits and dashes.

    >>> artifact_key("scores", "hcrl_sa")
    'scores-hcrl-sa'
    """
    return re.sub(r"[^a-z0-9]+", "-", "-".join(str(part) for part in parts if part).lower()).strip("-")


def _as_data(config: RunConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration as plain data: Prefect has it in either form, at one moment or another."""
    return config if isinstance(config, Mapping) else config.model_dump(mode="json")


def _dataset(config: Mapping[str, Any]) -> str:
    data = {} if "source" in config else config.get("data") or {}  # the arguments of an experiment have any names
    return str(data.get("dataset") or "")


def _changes(parameters: Mapping[str, Any]) -> list[str]:
    """Write overrides with their sections, as they were given, and how many more there are than have room.

    Sections tell `training.max_epochs` from `training_of.fusion.max_epochs`.
    """
    overrides, shown = list(parameters.get("overrides") or ()), []
    for override in overrides[:MOST_OVERRIDES]:
        key, _, value = override.partition("=")
        value = value.strip()
        short = value if len(value) <= LONGEST_VALUE else f"{value[: LONGEST_VALUE - 1]}…"
        shown.append(f"{key.strip()}={short}")
    more = len(overrides) - MOST_OVERRIDES
    return [*shown, *([f"and {more} more"] if more > 0 else [])]
