"""The stage `evaluation`: raw scores of every window, and what is measured beside them.

The stage scores validation and test windows with every model of one seed, in batches, and keeps the raw scores. What
is decided from them is in `kdgat.can.evaluation.decision`: another rule or another choice needs no second scoring.

Beside the scores it writes ranks of attacked identifiers, a map of embeddings and costs, each in a file of its own: a
stage that was stopped continues with the next one, and measured seconds are kept apart from what every run repeats.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from kdgat.base import validate_config
from kdgat.can.data.pool import PooledStores, open_pool
from kdgat.can.evaluation.costs import COSTS_FILE, measure_costs
from kdgat.can.evaluation.detectors import DetectorSet
from kdgat.can.evaluation.embeddings import EMBEDDINGS_FILE, chosen_model, map_embeddings, write_map
from kdgat.can.evaluation.explanation import rank_attacked, write_ranks
from kdgat.can.evaluation.run import COSTS, EMBEDDINGS, RANKS_PREFIX, SCORES_PREFIX, TEST_PREFIX
from kdgat.can.evaluation.scores import (
    baseline_scores,
    make_table,
    read_table,
    write_table,
)
from kdgat.can.kinds import MODELS, EvaluationStageConfig
from kdgat.canbus.features import INJECTED_VALIDATION, RECORDINGS, SCHEMA, VALIDATION
from kdgat.graphs import GraphStore
from kdgat.stage import Finished, Outcome, RunDirectory, StageInputError, StageSpec, input_path
from kdgat.stage.directory import phase_progress

logger = logging.getLogger(__name__)


def run_evaluation(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Score validation and every test scenario with all models of this seed."""
    config = validate_config(EvaluationStageConfig, spec.config)
    weights = {name: input_path(spec, directory, name) for name in MODELS if name in spec.inputs}
    if not weights:
        raise StageInputError(f"evaluation needs the weights of a model; known names: {', '.join(MODELS)}")
    detectors = DetectorSet(weights)
    wanted = list(config.models) if config.models is not None else None
    artifacts: dict[str, str] = {}
    metrics: dict[str, float] = {}
    splits = [VALIDATION, *sorted(name for name in spec.inputs if name.startswith(TEST_PREFIX))]
    pools = {
        split: open_pool(spec, directory, split, INJECTED_VALIDATION if split == VALIDATION else "") for split in splits
    }
    for split, pool in pools.items():
        artifact = f"{SCORES_PREFIX}{split}"
        path = directory.path / f"{artifact}.npz"
        if not path.is_file():  # a stage that was stopped resumes with the next split
            stores = [GraphStore.open(input_path(spec, directory, name), SCHEMA) for name in pool.names]
            scores = detectors.score(pool, wanted, phase_progress(directory, split))
            scores |= baseline_scores(pool.parts, stores[0].node_features)
            names, is_virtual = (
                [store.attributes[RECORDINGS] for store in stores],
                [name != split for name in pool.names],
            )
            learned = detectors.learned_from(pool) if split == VALIDATION else None
            write_table(path, make_table(pool.parts, names, scores, is_virtual, learned))
        artifacts[artifact] = path.name
        table = read_table(path)
        metrics[f"num_windows_{split}"] = float(table.num_windows)
        logger.info("%s: %d windows scored by %s", split, table.num_windows, ", ".join(table.scores))
    artifacts |= write_beside_scores(spec, directory, detectors, weights, pools)
    return Finished(metrics=metrics, artifacts=artifacts)


def write_beside_scores(
    spec: StageSpec,
    directory: RunDirectory,
    detectors: DetectorSet,
    weights: Mapping[str, Path],
    pools: Mapping[str, PooledStores],
) -> dict[str, str]:
    """Write what is not there yet, and return the artifacts by name; of the pools, validation comes first."""
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
