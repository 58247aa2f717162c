"""What the stages of a training run have left behind, found from `run.json` wherever the run lies now."""

from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from kdgat.base import Config, UserError, validate_config
from kdgat.base.kept import read_kept
from kdgat.can.evaluation.score_tables import NodeScores, ScoreTable, read_node_scores, read_table
from kdgat.can.kinds import MODELS, PREPARE
from kdgat.can.sections import EvaluationConfig
from kdgat.canbus import ReadLimits
from kdgat.canbus.features import VALIDATION
from kdgat.canbus.summary import DataSummary, RecordingSummary
from kdgat.run import WEIGHTS, FinishedRun, OutputDirectory

TEST_PREFIX: Final = "test-"
SCORES_PREFIX: Final = "scores-"  # artifacts `scores-validation`, `scores-test-<scenario>`
NODES_PREFIX: Final = "nodes-"  # the same, of the nodes of windows

M = TypeVar("M", bound=Config)


class FinishedCanRun(FinishedRun):
    """Read what the stages of a run have left behind, its evaluation among them."""

    def __init__(self, output: OutputDirectory) -> None:
        """Read `run.json`; RunError if there is none, or no evaluation has finished."""
        super().__init__(output)
        self._evaluations = self.evaluations()

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
        for record in self.records(PREPARE):
            return int(self.output.stage_directory(record).read_spec().config.get("feature_version", 1))
        raise UserError(f"{self.output.path}: the stage prepare has not finished: run the training again")

    def read_limits(self) -> ReadLimits:
        """Return how much damage in a recording the run tolerates."""
        data = self.index.config.get("data", {})
        return validate_config(ReadLimits, {key: data[key] for key in ("max_bad_fraction",) if key in data})

    def evaluation_config(self) -> EvaluationConfig:
        """Read how to decide."""
        return validate_config(EvaluationConfig, self.index.config.get("evaluation", {}))

    def tables(self, split: str) -> dict[int, ScoreTable]:
        """Read the scores of one split, per seed, with the vehicles of its recordings where many train."""
        artifact = f"{SCORES_PREFIX}{split}"
        tables = {seed: read_table(self.artifact(self._evaluations[seed], artifact)) for seed in self.seeds}
        role = split if split == VALIDATION else "test"
        rows = [row for row in self._data_summary().recordings if row.role == role and row.vehicle]
        vehicle_of = {f"{row.scenario}/{row.name}": row.vehicle or "" for row in rows}
        return {
            seed: replace(table, vehicles=tuple(vehicle_of.get(name, "") for name in table.recording_names))
            if vehicle_of
            else table
            for seed, table in tables.items()
        }

    def node_scores(self, split: str) -> dict[int, NodeScores] | None:
        """Read what is said of the nodes of one split, per seed; None for a run that an earlier version evaluated."""
        artifact = f"{NODES_PREFIX}{split}"
        if any(artifact not in self.outcome(self._evaluations[seed]).artifacts for seed in self.seeds):
            return None
        return {seed: read_node_scores(self.artifact(self._evaluations[seed], artifact)) for seed in self.seeds}

    def test_splits(self) -> list[str]:
        """List the test splits that were scored."""
        artifacts = self.outcome(self._evaluations[self.seeds[0]]).artifacts
        prefix = f"{SCORES_PREFIX}{TEST_PREFIX}"
        return sorted(name.removeprefix(SCORES_PREFIX) for name in artifacts if name.startswith(prefix))

    def weights(self, seed: int) -> dict[str, Path]:
        """Find the weights of all models of one seed, where the run lies now."""
        found = {}
        for record in self.records(seed=seed):
            name = "fusion_small" if record.stage == "fusion" and record.scale == "small" else record.stage
            if name in MODELS:
                found[name] = self.artifact(record, WEIGHTS)
        return found

    def summary_of(self, name: str, model: type[M]) -> M | None:
        """Read a summary that `prepare` wrote; None if it wrote none."""
        content = self.summary(PREPARE, name)
        return None if content is None else read_kept(model, content, f"{self.output.path}: {name}", "train again")

    def trained_recordings(self) -> list[RecordingSummary]:
        """List the recordings that training or validation windows come from."""
        return [row for row in self._data_summary().recordings if row.role in ("train", "validation")]

    def _data_summary(self) -> DataSummary:
        return self.summary_of("data_summary", DataSummary) or DataSummary()
