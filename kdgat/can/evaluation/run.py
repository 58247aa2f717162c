"""A finished run, wherever it lies now: what its stages have left behind, its detectors, what its weights have seen.

Nothing here loads torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kdgat.base import Config, UserError, validate_config
from kdgat.base.kept import read_kept
from kdgat.can.evaluation.decision import Detector, calibrated_detector, choose_detector, model_names
from kdgat.can.evaluation.scores import ScoreTable, read_table
from kdgat.can.kinds import MODELS, PREPARE
from kdgat.can.plan import FAMILY
from kdgat.can.sections import EvaluationConfig
from kdgat.canbus import ReadLimits, WindowConfig
from kdgat.canbus.features import VALIDATION
from kdgat.canbus.summary import DataSummary, RecordingSummary
from kdgat.registry.registry import ENTRY_FILE, read_entry
from kdgat.run import WEIGHTS, FinishedRun, OutputDirectory

if TYPE_CHECKING:
    from kdgat.canbus.catalog import RecordingFile
    from kdgat.canbus.near_copies import Blocks

TEST_PREFIX: Final = "test-"
SCORES_PREFIX: Final = "scores-"  # artifacts `scores-validation`, `scores-test-<scenario>`
RANKS_PREFIX: Final = "ranks-"  # artifacts `ranks-test-<scenario>`
COSTS, EMBEDDINGS = "costs", "embeddings"  # artifacts

M = TypeVar("M", bound=Config)


class FinishedCanRun(FinishedRun):
    """Read what the stages of a run have left behind, its evaluation among them."""

    def __init__(self, output: OutputDirectory) -> None:
        """Read `run.json`; RunError if there is none of this family, or no evaluation has finished."""
        super().__init__(output, FAMILY)
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


def detector_of(run: FinishedCanRun, name: str | None = None, seeds: Sequence[int] | None = None) -> Detector:
    """Return the detector of this name and these seeds, calibrated on the run's validation; by default its own.

    Raises UserError for a name or a seed that the run does not have.
    """
    config, validation = run.evaluation_config(), run.tables(VALIDATION)
    missing = [seed for seed in seeds or () if seed not in validation]
    if missing:
        raise UserError(f"{run.output.path} has no seed {missing[0]}; it has: {', '.join(map(str, validation))}")
    chosen = {seed: validation[seed] for seed in seeds or validation}
    if name is None:
        return choose_detector(chosen, config)
    known = model_names(next(iter(chosen.values())))
    if name not in known:
        raise UserError(f"{run.output.path} has no detector {name!r}; it has: {', '.join(known)}")
    return calibrated_detector(name, chosen, config, with_habits=True)


def windows_of(run: FinishedCanRun) -> WindowConfig:
    """Read how the run cuts recordings into windows."""
    return validate_config(WindowConfig, run.index.config.get("windows", {}))


@dataclass(frozen=True)
class Lineage:
    """Recordings that earlier models of a line were trained on."""

    trained: dict[str, str] = field(default_factory=dict)  # content hash -> name of the model that was trained on it
    notes: tuple[str, ...] = ()  # what is not known


def lineage_of(path: Path) -> Lineage:
    """Follow a run, or a registered model, back to the one that was trained from scratch.

    A registered model is followed by its `entry.json` to those beside it, wherever the registry lies now; a run by the
    path that it was started from.
    """
    trained: dict[str, str] = {}
    seen: set[Path] = set()
    try:
        found = FinishedCanRun(OutputDirectory(path))
        while (start := _start_of(path, found.index.config)) is not None and start.absolute() not in seen:
            path = start
            seen.add(path.absolute())
            found = FinishedCanRun(OutputDirectory(path))
            for row in found.trained_recordings():
                if row.content_hash is not None:
                    trained.setdefault(row.content_hash, path.name)
    except (ValueError, OSError) as error:
        return Lineage(trained, (f"not all that the weights of {path.name} have seen is known: {error}",))
    return Lineage(trained)


def _start_of(path: Path, config: Mapping[str, Any]) -> Path | None:
    """Return the directory of the run or model that this one started from; None if it began from scratch."""
    entry = path / ENTRY_FILE
    if entry.is_file():
        parent = read_entry(entry).parent
        return None if parent is None else path.absolute().parent / parent
    start = config.get("start_from")
    return None if start is None else Path(start)


def near_copy(run: FinishedCanRun, file: "RecordingFile") -> str | None:
    """Name the training recording of a run that a recording is in part a copy of, if there is one."""
    return None if file.blocks is None else copy_of_trained(run, file.blocks)


def copy_of_trained(run: FinishedCanRun, blocks: "Blocks") -> str | None:
    """Name the training recording of a run that holds many of the blocks of a recording, if there is one."""
    from kdgat.canbus.near_copies import holds_much_of

    for row in run.trained_recordings():
        if row.blocks and holds_much_of(blocks, row.blocks):
            return f"{row.scenario}/{row.name}"
    return None
