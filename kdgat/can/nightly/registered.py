"""A finished run as a model of a registry: what evaluating it needs, and nothing of the data it was trained on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdgat.base import sha256_of_file
from kdgat.base.configuration import execution_keys, without_keys
from kdgat.can.config import CanConfig
from kdgat.can.evaluation.run import SCORES_PREFIX, FinishedCanRun
from kdgat.canbus.features import VALIDATION
from kdgat.canbus.summary import DataSummary
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import RunDirectory
from kdgat.stage.provenance import read_attempts
from kdgat.training import TrainingConfig

CATALOG_FILE: Final = "catalog.yaml"
HANDED_ON: Final = ("weights", "model", "data_summary", "injection_summary", f"{SCORES_PREFIX}{VALIDATION}")
# What says where things lie, or how jobs ask for room: two runs that differ in nothing else are the same one.
NOT_COMPARED: Final = (
    *("preset", "start_from", "resources", "data.data_root", "data.catalog", "data.leave_out", "data.backend"),
    *execution_keys(CanConfig),
    *(f"training_of.*.{key}" for key in execution_keys(TrainingConfig)),
)


@dataclass(frozen=True)
class ModelSource:
    """What a registry is given of a run."""

    files: dict[str, Path | bytes]  # path below the model's directory -> file, or content
    content: str  # hash of what the stages were and of what they learned
    provenance: dict[str, Any]


def model_source(run_directory: Path) -> ModelSource:
    """Collect what of a finished run makes a model: `kdgat evaluate can --run` then takes its directory as a run.

    Raises:
        RunError: if the run has not finished.
    """
    run = FinishedCanRun(OutputDirectory(run_directory))
    records = list(run.records())
    files: dict[str, Path | bytes] = {}
    for record in records:
        for path in _files_of(run, record):
            files[path.relative_to(run.output.path).as_posix()] = path
    config = run.index.config
    if run.catalog is not None:
        files[CATALOG_FILE] = Path(run.catalog)
        config = {**config, "data": {**config["data"], "catalog": CATALOG_FILE}}
    files[run.output.index_path.name] = _index_of(run.index, records, config)
    return ModelSource(files, _content(run.output, records), _provenance(run, records))


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash a configuration (16 hex digits) without what only says where things lie, and what changes no result."""
    return content_hash(without_keys(config, NOT_COMPARED))[:16]


def content_hash(content: Any) -> str:
    """Hash plain data; 64 hex digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _files_of(run: FinishedCanRun, record: StageRecord) -> list[Path]:
    """List what is kept of a stage: what it was asked, how it went, and what it learned, as it wrote that; no graphs.

    RunError of what is not as it was written: it would be another model under the name of this one.
    """
    directory = run.output.stage_directory(record)
    kept = [directory.spec_path, directory.outcome_path, directory.provenance_path, directory.metrics_path]
    kept += [run.artifact(record, name) for name in run.outcome(record).artifacts if name in HANDED_ON]
    return [path for path in kept if path.is_file()]


def _index_of(index: RunIndex, records: list[StageRecord], config: Mapping[str, Any]) -> bytes:
    finished = [record.model_copy(update={"state": StageState.FINISHED, "message": ""}) for record in records]
    return (
        index.model_copy(update={"stages": finished, "config": dict(config)}).model_dump_json(indent=2) + "\n"
    ).encode()


def _content(output: OutputDirectory, records: list[StageRecord]) -> str:
    def weights_hash(record: StageRecord) -> str:
        path = output.stage_directory(record).weights_path
        return sha256_of_file(path) if path.is_file() else ""

    return content_hash(sorted((record.name, record.identity, weights_hash(record)) for record in records))


def _provenance(run: FinishedCanRun, records: list[StageRecord]) -> dict[str, Any]:
    """State which code, packages, configuration and recordings a model comes from."""
    attempts = {record.name: _last_attempt(run.output.stage_directory(record)) for record in records}
    trained = next((attempt for name, attempt in reversed(attempts.items()) if attempt and name != "prepare"), {})
    summary = run.summary_of("data_summary", DataSummary) or DataSummary()
    return {
        **{key: trained.get(key) for key in ("git", "packages", "python", "image") if key in trained},
        "revisions": sorted({str((attempt.get("git") or {}).get("revision")) for attempt in attempts.values()}),
        "preset": run.index.config.get("preset"),
        "config_hash": config_hash(run.index.config),
        "seeds": run.seeds,
        "stages": {record.name: record.identity for record in records},
        "recordings": {f"{row.role}/{row.scenario}/{row.name}": row.content_hash for row in summary.recordings},
        "run": str(run.output.path.absolute()),
    }


def _last_attempt(directory: RunDirectory) -> dict[str, Any]:
    attempts = read_attempts(directory.provenance_path)
    return dict(attempts[-1]) if attempts else {}
