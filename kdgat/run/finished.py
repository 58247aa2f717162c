"""What the stages of a run have left behind, found from `run.json` wherever the run lies now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard, TypeVar

from kdgat.base.hashes import KnownHashes
from kdgat.base.kept import refuse_newer
from kdgat.run.directory import DONE_STATES, OutputDirectory, RunError, RunIndex, StageRecord, StageState
from kdgat.run.measure import Measure
from kdgat.run.results import Versioned
from kdgat.stage import Finished

WEIGHTS: Final = "weights"  # name of the artifact that a training stage hands on
EVALUATION: Final = "evaluation"  # the stage, one per seed, whose outcomes become the results of a run

Written = TypeVar("Written", bound=Versioned)

Curve = Mapping[str, list[float | None]]  # column -> one value per epoch


def has_results(index: RunIndex) -> bool:
    """Return whether the results of an output directory are of the run that its index describes.

    They stay where a run is begun again with other settings, and are of the earlier one until its evaluation has ended.
    """
    evaluations = [record for record in index.stages if record.stage == EVALUATION]
    return bool(evaluations) and all(record.state in DONE_STATES for record in evaluations)


class FinishedRun:
    """Read the stages of a run that have finished."""

    def __init__(self, output: OutputDirectory, family: str | None = None) -> None:
        """Read `run.json`; RunError as of `OutputDirectory.read_index`."""
        self.output = output
        self.index: RunIndex = output.read_index(family)

    def records(self, stage: str | None = None, seed: int | None = None) -> Iterator[StageRecord]:
        """Yield the stages that are done, of this kind and seed, in the order of the plan."""
        for record in self.index.stages:
            if record.state in DONE_STATES and stage in (None, record.stage) and seed in (None, record.seed):
                yield record

    def describe_failed(self, stage: str | None = None, seed: int | None = None) -> str:
        """Say which stages of this kind and seed have failed, and what can be done with them; empty if none has."""
        failed = [
            f"{record.name} has failed ({record.reason})"
            for record in self.index.stages
            if record.state == StageState.FAILED and stage in (None, record.stage) and seed in (None, record.seed)
        ]
        if not failed:
            return ""
        return (
            f"; {', '.join(failed)}: a stage that failed has no weights to hand on, and its checkpoints go on only "
            "with the configuration that they are of. With another one, as a lower training.learning_rate, train from "
            "scratch: leave start_from away"
        )

    def outcome(self, record: StageRecord) -> Finished:
        """Return what a stage reported; RunError if its directory has no such outcome."""
        outcome = self.output.stage_directory(record).read_outcome()
        if not isinstance(outcome, Finished):
            raise RunError(f"{record.name} is marked as finished, but its directory has no such outcome: run it again")
        return outcome

    def artifact(self, record: StageRecord, name: str) -> Path:
        """Return the file of an artifact; RunError names those that there are, or says that it is not as it was."""
        artifacts = self.outcome(record).artifacts
        if name not in artifacts:
            raise RunError(f"{record.name} has no artifact {name!r} (it has: {', '.join(sorted(artifacts))})")
        directory = self.output.stage_directory(record)
        path = directory.path / artifacts[name]
        if how := KnownHashes(directory.hashes_path).change(path):
            raise RunError(
                f"{path} is {how} since {record.name} wrote it: run `kdgat train {self.index.family}` with this "
                "--out and its settings, which makes it again"
            )
        return path

    def validation(self, stage: str | None = None) -> Measure | None:
        """Return what a stage monitored on validation data, over seeds; of the last stage that trained by default."""
        found: dict[tuple[str, str, str], dict[int, float]] = {}
        for record in self.records(stage):
            config = self.output.stage_directory(record).read_spec().config
            fit = (config.get("fits") or [config])[-1]  # a stage of several fits ends with the weights of the last one
            training = fit.get("training") or {}
            monitor, metrics = str(training.get("monitor")), self.outcome(record).metrics
            value = metrics.get(monitor, metrics.get(f"{fit.get('name')}_{monitor}"))
            if value is not None:
                where = f"{monitor} of {record.stage}"
                found.setdefault((where, record.scale, str(training.get("mode", "min"))), {})[record.seed] = value
        if not found:
            return None
        (name, _, mode), by_seed = list(found.items())[-1]
        return Measure.over_seeds(name, by_seed, is_higher_better=mode == "max")

    def evaluations(self) -> dict[int, StageRecord]:
        """Return the evaluation of every seed; RunError if none has finished."""
        found = {record.seed: record for record in self.records(EVALUATION)}
        if not found:
            earlier = (
                "; what was evaluated before comes back at once by the command with the settings of that time"
                if self.output.results_path.is_file()
                else ""
            )
            raise RunError(
                f"{self.output.path}: no evaluation stage has finished; run `kdgat train {self.index.family}` with "
                f"this --out to its end{earlier}"
            )
        return found

    def read_evaluations(self, kind: type[Written]) -> list[Written]:
        """Read what the evaluation of every seed has written, in the order of seeds; errors as of `kind.read`."""
        return [kind.read(self.artifact(record, "results")) for _, record in sorted(self.evaluations().items())]

    def summary(self, stage: str, name: str) -> Any | None:
        """Read a JSON artifact of the first stage of this kind that has it; None if there is none."""
        for record in self.records(stage):
            if name in self.outcome(record).artifacts:
                path = self.artifact(record, name)
                content = json.loads(path.read_text(encoding="utf-8"))
                refuse_newer(content, path, RunError)
                return content
        return None

    def parameter_counts(self) -> dict[str, int]:
        """Count the parameters of each trained model, by stage and scale."""
        counts: dict[str, int] = {}
        for record in self.records():
            for name, value in self.outcome(record).metrics.items():
                if name.endswith("num_parameters"):
                    part = name.removesuffix("num_parameters").rstrip("_")
                    counts["-".join(filter(None, (record.stage, record.scale, part)))] = int(value)
        return counts

    def training_curves(self) -> dict[str, Curve]:
        """Read what training logged, by stage, and by fit where a stage has several."""
        return {
            f"{record.name} {fit}".strip(): curve
            for record in self.records()
            for fit, curve in curves_of_fits(self.output.stage_directory(record).read_metrics()).items()
        }


def curves_of_fits(rows: Iterable[Mapping[str, object]]) -> dict[str, Curve]:
    """Turn the rows of a stage's metrics.jsonl (`RunDirectory.read_metrics`) into a curve per fit, "" for a single one.

    A curve has columns with one entry per epoch. Rows of the same epoch are merged and the later value wins, so steps
    leave their last value. True counts as 1.
    """
    fits: dict[str, dict[float, dict[str, float]]] = {}
    for row in rows:
        epochs = fits.setdefault(str(row.get("fit", "")), {})
        numbers = {key: float(value) for key, value in row.items() if _is_number(value)}
        if "epoch" in numbers:
            epochs.setdefault(numbers["epoch"], {}).update(numbers)
    return {fit: _columns(epochs) for fit, epochs in fits.items()}


def _columns(epochs: Mapping[float, Mapping[str, float]]) -> Curve:
    names = dict.fromkeys(name for row in epochs.values() for name in row)
    return {name: [epochs[epoch].get(name) for epoch in sorted(epochs)] for name in names}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and abs(value) < float("inf")
