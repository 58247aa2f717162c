"""Weights of the family: what their file says about the model, where a run keeps them, and what may start from them."""

from pathlib import Path
from typing import Any

from kdgat.lap.names import FAMILY
from kdgat.lap.plan import weights_artifact
from kdgat.lap.sections import FEATURE_VERSION, TrainingStageConfig
from kdgat.run import WEIGHTS, FinishedRun, OutputDirectory
from kdgat.stage import RunDirectory, StageInputError
from kdgat.training import check_start
from kdgat.training.weights import read_description


def describe_model(config: TrainingStageConfig) -> dict[str, Any]:
    """Return what a weights file says about the model and the graphs that it reads, as plain data."""
    return {
        "family": FAMILY,
        "kind": config.model.kind,
        "model": config.model.model_dump(mode="json"),
        "graph": config.graph.model_dump(mode="json", exclude={"witnesses"}),  # which only the loss reads
        "feature_version": FEATURE_VERSION,
    }


def check_lap_start(path: Path, config: TrainingStageConfig) -> None:
    """Check that a stage of this configuration may start from these weights; errors of `check_start`, WeightsError."""
    check_start(path, read_description(path)["config"], describe_model(config))


def find_run(path: Path) -> FinishedRun | Path:
    """Return the run of this family that lies at a path, or the weights file that it stands for.

    Raises:
        StageInputError: if neither is there.
        RunError: if it is a run of another family.
    """
    output = OutputDirectory(path)
    if output.index_path.is_file():
        return FinishedRun(output, FAMILY)
    weights = path if path.is_file() else RunDirectory(path).weights_path
    if not weights.is_file():
        raise StageInputError(
            f"{path}: no run and no weights are there: name the --out of `kdgat train lap`, the directory of one of "
            "its training stages, or a weights.safetensors"
        )
    return weights


def last_weights(path: Path) -> Path:
    """Return the weights that users get: of a run those of its last finished training stage, of the best seed there.

    A stage's directory, or a file, is taken as it is. The best seed is the one with the lowest validation loss.

    Raises:
        StageInputError: if there are none.
    """
    run = find_run(path)
    if isinstance(run, Path):
        return run
    trained = [record for record in run.records() if WEIGHTS in run.outcome(record).artifacts]
    if not trained:
        raise StageInputError(
            f"{path}: no training stage has finished: run `kdgat train lap` with this --out to its end"
        )
    places = list(dict.fromkeys((record.stage, record.scale) for record in run.index.stages))
    last = max(places.index((record.stage, record.scale)) for record in trained)
    of_last = [record for record in trained if (record.stage, record.scale) == places[last]]
    best = min(of_last, key=lambda record: run.outcome(record).metrics.get("validation_loss", float("inf")))
    return run.artifact(best, WEIGHTS)


def starting_weights(path: Path, stage: str | None, seed: int) -> Path:
    """Return the weights that a stage starts from which follows `stage` (None: the first one, which follows none).

    Of a run they are those that `stage` has trained with the same seed, or those of the run's last stage.

    Raises:
        StageInputError: if there are none, naming those that there are.
    """
    run = find_run(path)
    if isinstance(run, Path):
        return run
    prefix = weights_artifact("")
    found = {
        name.removeprefix(prefix): run.artifact(record, name)
        for record in run.records(seed=seed)
        for name in run.outcome(record).artifacts
        if name.startswith(prefix)
    }
    if found and stage is None:
        return list(found.values())[-1]
    if stage is None or stage not in found:
        advice = run.describe_failed(seed=seed) or ": train that first, or name another run"
        raise StageInputError(
            f"start_from={path}: has no finished {stage or 'training stage'} of seed {seed} (it has: "
            f"{', '.join(found) or 'none'}){advice}"
        )
    return found[stage]
