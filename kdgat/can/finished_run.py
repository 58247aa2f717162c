"""What the stages of a training run have left behind, found from `run.json` wherever the run lies now."""

import json
from pathlib import Path
from typing import Final, TypeVar

from kdgat.can.messages import ReadLimits
from kdgat.can.model_names import MODELS
from kdgat.can.results import DataSummary, RecordingSummary, training_curve
from kdgat.can.score_tables import ScoreTable, read_table
from kdgat.can.sections import EvaluationConfig
from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState
from kdgat.stage.configuration import Config, validate_config
from kdgat.stage.outcome import Finished

TEST_PREFIX: Final = "test-"
SCORES_PREFIX: Final = "scores-"  # artifacts `scores-validation`, `scores-test-<scenario>`
DONE: Final = (StageState.FINISHED, StageState.CACHED)

M = TypeVar("M", bound=Config)


class EvaluationError(ValueError):
    """A run cannot be evaluated; the text says what is missing."""


class FinishedRun:
    """What the stages of a run have left behind."""

    def __init__(self, output: OutputDirectory) -> None:
        self.output = output
        self.index: RunIndex = output.read_index()
        self._evaluations = {record.seed: record for record in self.index.stages if self._is_done(record, "evaluation")}
        if not self._evaluations:
            raise EvaluationError(
                f"{output.path}: no evaluation stage has finished; run `kdgat train can` with this --out to its end"
            )

    @property
    def seeds(self) -> list[int]:
        """List the seeds that were evaluated."""
        return sorted(self._evaluations)

    @property
    def dataset(self) -> str:
        """Return the dataset that the run was trained on."""
        return str(self.index.config.get("data", {}).get("dataset", ""))

    @property
    def catalog(self) -> str | None:
        """Return the catalog file that the run was given, if any; a registered model has it beside its `run.json`."""
        catalog = self.index.config.get("data", {}).get("catalog")
        if catalog is not None and (self.output.path / catalog).is_file():
            return str(self.output.path / catalog)
        return None if catalog is None else str(catalog)

    def left_out(self, data_root: Path | str) -> tuple[str, ...]:
        """List the files that the run left out, if this is the data root it was trained on."""
        data = self.index.config.get("data", {})
        own = data.get("data_root")
        is_own = own is not None and Path(own).absolute() == Path(data_root).absolute()
        return tuple(data.get("leave_out", ())) if is_own else ()

    def feature_version(self) -> int:
        """Return the version of the features that the run's models were trained on."""
        for record in self.index.stages:
            if self._is_done(record, "prepare"):
                return int(self.output.stage_directory(record).read_spec().config.get("feature_version", 1))
        raise EvaluationError(f"{self.output.path}: the stage prepare has not finished: run the training again")

    def read_limits(self) -> ReadLimits:
        """Return how much damage in a recording the run tolerates."""
        data = self.index.config.get("data", {})
        return validate_config(ReadLimits, {key: data[key] for key in ("max_bad_fraction",) if key in data})

    def evaluation_config(self) -> EvaluationConfig:
        """Read how to decide."""
        return validate_config(EvaluationConfig, self.index.config.get("evaluation", {}))

    def tables(self, split: str) -> dict[int, ScoreTable]:
        """Read the scores of one split, per seed."""
        return {
            seed: read_table(self._artifact(self._evaluations[seed], f"{SCORES_PREFIX}{split}")) for seed in self.seeds
        }

    def test_splits(self) -> list[str]:
        """List the test splits that were scored."""
        artifacts = self._finished(self._evaluations[self.seeds[0]]).artifacts
        prefix = f"{SCORES_PREFIX}{TEST_PREFIX}"
        return sorted(name.removeprefix(SCORES_PREFIX) for name in artifacts if name.startswith(prefix))

    def weights(self, seed: int) -> dict[str, Path]:
        """Find the weights of all models of one seed, where the run lies now."""
        found = {}
        for record in self.index.stages:
            name = "fusion_small" if record.stage == "fusion" and record.scale == "small" else record.stage
            if record.seed == seed and name in MODELS and self._is_done(record):
                found[name] = self.output.stage_directory(record).weights_path
        return found

    def summary(self, name: str, model: type[M]) -> M | None:
        """Read a summary that `prepare` wrote; None if it wrote none."""
        for record in self.index.stages:
            if self._is_done(record, "prepare") and name in self._finished(record).artifacts:
                content = json.loads(self._artifact(record, name).read_text(encoding="utf-8"))
                return validate_config(model, content)
        return None

    def trained_recordings(self) -> list[RecordingSummary]:
        """List the recordings that training or validation windows come from."""
        summary = self.summary("data_summary", DataSummary)
        return [row for row in summary.recordings if row.role == "train"] if summary is not None else []

    def parameter_counts(self) -> dict[str, int]:
        """Count the parameters of each trained model, by stage and scale."""
        counts: dict[str, int] = {}
        for record in self.index.stages:
            if self._is_done(record):
                for name, value in self._finished(record).metrics.items():
                    if name.endswith("num_parameters"):
                        part = name.removesuffix("num_parameters").rstrip("_")
                        counts["-".join(filter(None, (record.stage, record.scale, part)))] = int(value)
        return counts

    def training_curves(self) -> dict[str, dict[str, list[float | None]]]:
        """Read what training logged, by stage, and by fit where a stage has several."""
        curves = {}
        for record in self.index.stages:
            if not self._is_done(record):
                continue
            rows = self.output.stage_directory(record).read_metrics()
            for fit_name in dict.fromkeys(str(row.get("fit", "")) for row in rows):
                name = f"{record.name} {fit_name}".strip()
                curves[name] = training_curve(row for row in rows if str(row.get("fit", "")) == fit_name)
        return curves

    def _is_done(self, record: StageRecord, stage: str | None = None) -> bool:
        return record.state in DONE and stage in (None, record.stage)

    def _finished(self, record: StageRecord) -> Finished:
        outcome = self.output.stage_directory(record).read_outcome()
        if not isinstance(outcome, Finished):
            raise EvaluationError(
                f"{record.name} is marked as finished, but its directory has no such outcome: run it again"
            )
        return outcome

    def _artifact(self, record: StageRecord, name: str) -> Path:
        artifacts = self._finished(record).artifacts
        if name not in artifacts:
            raise EvaluationError(f"{record.name} has no artifact {name!r} (it has: {', '.join(sorted(artifacts))})")
        return self.output.stage_directory(record).path / artifacts[name]
