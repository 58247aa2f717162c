"""Everything the report needs from the output directory of a run, and the list of what is not there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kdgat.can.results import Results, read_results, training_curve
from kdgat.can.scores import Scores, read_scores, scores_path
from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord
from kdgat.stage.directory import RunDirectory


class ReportError(ValueError):
    """A directory holds nothing to report on; the text says what it lacks and the fix."""


@dataclass(frozen=True)
class StageContent:
    """One stage of the run: its record, what each of its fits logged, and on what machine each attempt ran."""

    record: StageRecord
    curves: dict[str, dict[str, list[float | None]]]  # by name of the fit, "" where a stage fits one model
    attempts: list[dict[str, Any]]


@dataclass(frozen=True)
class RunContent:
    """What is in the output directory; `missing` names in words what is not."""

    path: Path
    results: Results
    index: RunIndex | None
    stages: list[StageContent]
    scores: dict[str, Scores]
    missing: list[str] = field(default_factory=list)


def read_run(path: Path) -> RunContent:
    """Read a run; ReportError if the directory is none or has no results yet."""
    output = OutputDirectory(path)
    if not output.path.is_dir():
        raise ReportError(f"{path} is not a directory; give the directory that was --out of `kdgat train`")
    has_index, has_results = output.index_path.is_file(), output.results_path.is_file()
    if not has_index and not has_results:
        raise ReportError(
            f"{path} holds neither {output.index_path.name} nor {output.results_path.name};"
            " give the directory that was --out of `kdgat train`"
        )
    index = output.read_index() if has_index else None
    if not has_results:
        open_stages = (
            [f"{stage.name} is {stage.state}" for stage in index.stages if stage.state not in DONE] if index else []
        )
        raise ReportError(
            f"{path} has no {output.results_path.name} yet ({'; '.join(open_stages) or 'all stages done'});"
            " run the training command again to finish it"
        )
    results = read_results(output.results_path)
    missing: list[str] = []
    if index is None:
        missing.append("run.json: without it neither training curves of the stages nor their provenance are shown.")
    stages = [
        read_stage(output, record, missing, has_epochs=record.stage in STAGES_WITH_EPOCHS)
        for record in (index.stages if index else [])
    ]
    scores = {}
    for scenario in results.scenarios:
        file = scores_path(output.path, scenario)
        if file.is_file():
            scores[scenario] = read_scores(file)
        else:
            missing.append(f"{file.relative_to(output.path)}: no score along the recordings of {scenario}.")
    return RunContent(output.path, results, index, stages, scores, missing)


DONE = ("finished", "cached")
STAGES_WITH_EPOCHS = ("autoencoder", "normal", "curriculum", "distill_autoencoder", "distill_gat")


def read_stage(output: OutputDirectory, record: StageRecord, missing: list[str], *, has_epochs: bool) -> StageContent:
    """Read a stage, and add to `missing` what it lacks; `has_epochs`: it should have training curves."""
    if record.directory is None:
        missing.append(f"{record.name}: the stage has not started ({record.state}).")
        return StageContent(record, {}, [])
    directory = RunDirectory(output.path / record.directory)
    rows = directory.read_metrics()
    fits = dict.fromkeys(str(row.get("fit", "")) for row in rows)
    curves = {fit: training_curve(row for row in rows if str(row.get("fit", "")) == fit) for fit in fits}
    if not curves and has_epochs:
        missing.append(f"{record.directory}/{directory.metrics_path.name}: no training curve of {record.name}.")
    if record.state not in DONE:
        missing.append(f"{record.name}: the stage is {record.state}, not finished. {record.message}".strip())
    if directory.provenance_path.is_file():
        attempts = json.loads(directory.provenance_path.read_text(encoding="utf-8"))["attempts"]
    else:
        attempts = []
        missing.append(f"{record.directory}/{directory.provenance_path.name}: no provenance of {record.name}.")
    return StageContent(record, curves, attempts)
