"""What the evaluation stage finds beside scores: ranks of attacked identifiers, a map of embeddings, costs.

Each is a file of its own, so that a stage that was stopped goes on with the next, and what is measured in seconds never
stands beside what must be the same in every run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kdgat.base.files import write_bytes_atomically
from kdgat.can.evaluation.costs import COSTS_FILE
from kdgat.can.evaluation.decision import DefaultDetector, Tables
from kdgat.can.evaluation.detectors import DetectorSet
from kdgat.can.evaluation.embedding_map import EMBEDDINGS_FILE, write_map
from kdgat.can.evaluation.embeddings import chosen_model, map_embeddings
from kdgat.can.evaluation.explained import rank_attacked, read_ranks, score_explanations, write_ranks
from kdgat.can.evaluation.explanation_scores import ExplanationScores
from kdgat.can.evaluation.finished_run import TEST_PREFIX, FinishedCanRun
from kdgat.can.evaluation.latency import measure_costs
from kdgat.can.models.names import CLOCK
from kdgat.can.training.pool import PooledStores
from kdgat.canbus.features import RECORDINGS, SCHEMA
from kdgat.graphs.store import GraphStore
from kdgat.run.inputs import input_path
from kdgat.stage.directory import RunDirectory
from kdgat.stage.spec import StageSpec

RANKS_PREFIX: Final = "ranks-"  # artifacts `ranks-test-<scenario>`
COSTS, EMBEDDINGS = "costs", "embeddings"  # artifacts


def write_beside_scores(
    spec: StageSpec,
    directory: RunDirectory,
    detectors: DetectorSet,
    weights: Mapping[str, Path],
    pools: Mapping[str, PooledStores],
) -> dict[str, str]:
    """Write what is not there yet, and return the artifacts by name.

    Args:
        spec, directory: the stage.
        detectors: the models of its seed.
        weights: their files.
        pools: validation first, then the test scenarios.
    """
    artifacts: dict[str, str] = {}
    for split, pool in pools.items():
        path = directory.path / f"{RANKS_PREFIX}{split}.npz"
        if split.startswith(TEST_PREFIX):
            if not path.is_file():
                networks = {name: detectors.network(name) for name in detectors.ensemble_members}
                ranks = rank_attacked(networks, pool)
                if ranks is None:
                    continue
                write_ranks(path, ranks)
            artifacts[f"{RANKS_PREFIX}{split}"] = path.name
    model, path = chosen_model(weights), directory.path / EMBEDDINGS_FILE
    if model is not None and not path.is_file():
        names = [_recordings(spec, directory, pool) for pool in pools.values()]
        found = map_embeddings(model, detectors.network(model), list(pools.values()), names, spec.seed)
        if found is not None:
            write_map(path, found)
    if path.is_file():
        artifacts[EMBEDDINGS] = path.name
    path = directory.path / COSTS_FILE
    if not path.is_file():
        costs = measure_costs(detectors, next(iter(pools.values())), spec.seed)
        if costs is not None:
            costs.write(path)
    if path.is_file():
        artifacts[COSTS] = path.name
    return artifacts


def _recordings(spec: StageSpec, directory: RunDirectory, pool: PooledStores) -> list[Sequence[str]]:
    return [GraphStore.open(input_path(spec, directory, name), SCHEMA).attributes[RECORDINGS] for name in pool.names]


def explanations_of(
    run: FinishedCanRun, detector: DefaultDetector, tests: Mapping[str, Tables]
) -> dict[str, ExplanationScores]:
    """Score the explanations of every scenario whose ranks the run has, by scenario."""
    found = {}
    for scenario, tables in tests.items():
        paths = [_artifact(run, seed, f"{RANKS_PREFIX}{TEST_PREFIX}{scenario}") for seed in detector.scalings]
        ranks = [read_ranks(path) for path in paths if path is not None]
        if len(ranks) < len(paths) or not len(ranks[0].window):
            continue
        by_clock = tables[next(iter(detector.scalings))].scores[CLOCK] >= 0.0
        scored = score_explanations(ranks, detector.model, detector.decide(tables), by_clock)
        if scored is not None:
            found[scenario] = scored
    return found


def copy_beside_results(run: FinishedCanRun, detector: DefaultDetector) -> None:
    """Put the map of embeddings and the costs of the detector's first seed where reports look for them."""
    for artifact, name in ((EMBEDDINGS, EMBEDDINGS_FILE), (COSTS, COSTS_FILE)):
        path = _artifact(run, next(iter(detector.scalings)), artifact)
        if path is not None:
            write_bytes_atomically(run.output.path / name, path.read_bytes())


def _artifact(run: FinishedCanRun, seed: int, name: str) -> Path | None:
    """Find an artifact of a seed's evaluation; None where it was evaluated before there were such."""
    record = run.evaluations()[seed]
    return run.artifact(record, name) if name in run.outcome(record).artifacts else None
