"""Everything a report needs from the output directory of a run, and the list of what is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from kdgat.cluster import AttemptLedger
from kdgat.cluster.attempts import OPEN
from kdgat.cluster.usage import Usage, usage_of
from kdgat.run import EVALUATION, OutputDirectory, StageRecord
from kdgat.run.directory import DONE_STATES, RunIndex
from kdgat.run.finished import Curve, curves_of_fits, has_results
from kdgat.run.results import RunResults
from kdgat.stage import Finished, RunDirectory, RunDirectoryError, Work
from kdgat.stage.provenance import read_attempts

R = TypeVar("R", bound=RunResults)


@dataclass(frozen=True)
class StageContent:
    """One stage of the run: its record, what each of its fits logged, and on what machine each attempt ran."""

    record: StageRecord
    curves: dict[str, Curve]  # by name of the fit, "" where a stage fits one model
    attempts: list[dict[str, Any]]
    usages: list[Usage] = field(default_factory=list)  # one per attempt that ended
    profiles: list[dict[str, Any]] = field(default_factory=list)  # of fits, where they were asked for


@dataclass(frozen=True)
class RunContent(Generic[R]):
    """What is in the output directory; `missing` names in words what is not."""

    path: Path
    results: R
    index: RunIndex | None
    stages: list[StageContent]
    missing: list[str] = field(default_factory=list)
    notice: str = ""  # what a reader has to know before everything else

    @property
    def revision(self) -> str:
        """Return the revision of the results, or those that the stages ran with; empty if neither is known."""
        if self.results.revision:
            return self.results.revision[:10]
        found = [attempt.get("git") for stage in self.stages for attempt in stage.attempts]
        names = [git["revision"][:10] + (" with changes" if git.get("dirty") else "") for git in found if git]
        return ", ".join(dict.fromkeys(names))


def read_run(path: Path, read_results: Callable[[Path], R]) -> RunContent[R]:
    """Read a run that has results."""
    output = OutputDirectory(path)
    index = output.read_index() if output.index_path.is_file() else None
    results = read_results(output.results_path)
    missing: list[str] = []
    if index is None:
        missing.append("run.json: without it neither training curves of the stages nor their provenance are shown.")
    stages = [read_stage(output, record, missing) for record in (index.stages if index else [])]
    return RunContent(output.path, results, index, stages, missing, _notice(results, index))


def _notice(results: RunResults, index: RunIndex | None) -> str:
    """Say of results that are of an earlier run in the same directory that they are, and when this one has its own."""
    if index is None or has_results(index):
        return ""
    evaluations = [record for record in index.stages if record.stage == EVALUATION]
    ending = (
        f"its evaluation is {evaluations[0].state}: the same training command again finishes it"
        if evaluations
        else "its stages leave the evaluation out"
    )
    return (
        f"The scores are of an earlier run, evaluated {results.created}. Since then a run with other settings was begun"
        f" in this directory; {ending}. Stages, training curves and configuration below are of that run."
    )


def read_stage(output: OutputDirectory, record: StageRecord, missing: list[str]) -> StageContent:
    """Read a stage, and add to `missing` what it lacks."""
    if record.directory is None:
        missing.append(f"{record.name}: the stage has not started ({record.state}).")
        return StageContent(record, {}, [])
    directory = RunDirectory(output.path / record.directory)
    curves = curves_of_fits(directory.read_metrics())
    outcome = directory.read_outcome()
    if not curves and isinstance(outcome, Finished) and "epochs" in outcome.metrics:
        missing.append(f"{record.directory}/{directory.metrics_path.name}: no training curve of {record.name}.")
    if record.state not in DONE_STATES:
        missing.append(f"{record.name}: the stage is {record.state}, not finished. {record.message}".strip())
    attempts: list[dict[str, Any]] = []
    if directory.provenance_path.is_file():
        try:
            attempts = read_attempts(directory.provenance_path)
        except RunDirectoryError as error:
            missing.append(f"{record.name}: {error}")
    else:
        missing.append(f"{record.directory}/{directory.provenance_path.name}: no provenance of {record.name}.")
    return StageContent(record, curves, attempts, _read_usages(directory), _read_profiles(directory))


def _read_usages(directory: RunDirectory) -> list[Usage]:
    """Describe the attempts that ended; what the process did itself is known of the last one alone."""
    ended = [record for record in AttemptLedger(directory).records if record.end != OPEN]
    work = directory.read_work() or Work()
    spec = directory.read_spec()
    works = [Work() for _ in ended[:-1]] + [work]
    return [usage_of(record, work, spec, directory.path.name) for record, work in zip(ended, works, strict=False)]


def _read_profiles(directory: RunDirectory) -> list[dict[str, Any]]:
    paths = sorted(directory.profile_path.glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]
