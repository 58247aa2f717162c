"""A LAP run as its stages leave it: real instances and networks, small and untrained, so that nothing is invented."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from kdgat.lap.evaluation.stage import run_evaluation
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.store import write_store
from kdgat.lap.models import make_model
from kdgat.lap.sections import FEATURE_VERSION, DualNetworkConfig, GraphConfig, ModelConfig
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import Finished, Outcome, RunDirectory, StageInput, StageSpec
from kdgat.stage.provenance import record_attempt
from kdgat.training.weights import save_weights

STAGES = ("small_512_only", "mid_2048")  # names alone: the matrices are small
DISTRIBUTIONS = ("uniform", "sparse")
MEASURED = {"measured_instances": 2, "repeats": 2, "warm_ups": 0, "solvers": ["core"]}


def write_instances(path: Path, size: int, families: Sequence[str] = DISTRIBUTIONS, count: int = 3) -> Path:
    """Write a test store."""
    write_store(path, (generate(family, size, seed) for family in families for seed in range(count)))
    return path


def write_network(folder: Path, seed: int = 0, stage: str = STAGES[0]) -> Path:
    """Write the weights of a fresh network, as a training stage does."""
    torch.manual_seed(seed)
    model_config, graph = ModelConfig(dual=DualNetworkConfig(hidden=4, heads=2, width=4, rounds=1)), GraphConfig()
    spec = StageSpec(family="lap", stage=stage, seed=seed)
    config = {
        "family": "lap",
        "feature_version": FEATURE_VERSION,
        "model": model_config.model_dump(mode="json"),
        "graph": graph.model_dump(mode="json"),
    }
    return save_weights(RunDirectory(folder).create(spec), make_model(model_config), config)


def evaluation_directory(
    folder: Path, stores: dict[int, Path], weights: dict[str, Path], seed: int = 0, **evaluation: object
) -> RunDirectory:
    """Make the run directory of an evaluation stage."""
    inputs = {f"test-{size}": StageInput.of_file(path) for size, path in stores.items()}
    inputs |= {f"weights-{stage}": StageInput.of_file(path) for stage, path in weights.items()}
    spec = StageSpec(
        family="lap",
        stage="evaluation",
        scale="all",
        seed=seed,
        config={"evaluation": {**MEASURED, **evaluation}, "stages": list(weights)},
        inputs=inputs,
    )
    return RunDirectory(folder).create(spec)


def evaluate(directory: RunDirectory) -> Outcome:
    """Run the stage and write its outcome."""
    outcome = run_evaluation(directory.read_spec(), directory)
    directory.write_outcome(outcome)
    return outcome


def make_run(path: Path, sizes: Sequence[int] = (24, 40), seeds: Sequence[int] = (0, 1), preset: str = "quick") -> Path:
    """Write an output directory: two training stages per seed with their curves, and their evaluations."""
    output = OutputDirectory(path)
    stores = {size: write_instances(path / f"test-{size}.h5", size) for size in sizes}
    records = []
    for seed in seeds:
        weights = {}
        for place, stage in enumerate(STAGES):
            directory = RunDirectory(path / "stages" / f"{stage}-seed{seed}")
            weights[stage] = write_network(directory.path, seed=10 * seed + place, stage=stage)
            record_attempt(directory.provenance_path)
            for epoch in range(3):
                row = {"epoch": epoch, "train_loss": 0.3 / (epoch + 1), "validation_loss": 0.4 / (epoch + 1 + seed)}
                directory.append_metrics({**row, "is_best": True, "fit": stage})
            loss = {"validation_loss": 0.4 / (3 + seed)}
            files = {"weights": "weights.safetensors", f"weights-{stage}": "weights.safetensors"}
            directory.write_outcome(Finished(metrics=loss, artifacts=files))
            records.append(_record(path, directory, stage, seed))
        directory = evaluation_directory(path / "stages" / f"evaluation-seed{seed}", stores, weights, seed)
        record_attempt(directory.provenance_path)
        evaluate(directory)
        records.append(_record(path, directory, "evaluation", seed))
    output.write_index(RunIndex(family="lap", config={"preset": preset}, stages=records))
    return path


def _record(path: Path, directory: RunDirectory, stage: str, seed: int) -> StageRecord:
    return StageRecord(
        name=f"{stage}-seed{seed}",
        stage=stage,
        scale="all",
        seed=seed,
        directory=str(directory.path.relative_to(path)),
        state=StageState.FINISHED,
        attempts=1,
    )
