"""The stage `evaluation`, and the results of a finished run.

The stage scores validation and test windows with every model of one seed, in batches, and keeps the raw scores. What
is decided from them is in `kdgat.can.evaluation.decision`: another rule or another choice needs no second scoring.
"""

import logging

from kdgat.base.configuration import validate_config
from kdgat.can.evaluation.accumulated_evidence import learn_accumulation
from kdgat.can.evaluation.decision import choose_detector
from kdgat.can.evaluation.detectors import DetectorSet
from kdgat.can.evaluation.finished_run import NODES_PREFIX, SCORES_PREFIX, TEST_PREFIX, FinishedCanRun
from kdgat.can.evaluation.measurements import Measurements
from kdgat.can.evaluation.node_scores import make_node_scores, write_node_scores
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.score_tables import make_table, read_table, write_table
from kdgat.can.evaluation.scores import scores_path, write_scores
from kdgat.can.evaluation.told import copy_beside_results, explanations_of, write_beside_scores
from kdgat.can.evaluation.untrained import baseline_scores
from kdgat.can.kinds import MODELS, EvaluationStageConfig
from kdgat.can.sections import EvaluationConfig
from kdgat.can.training.stage_inputs import open_pool
from kdgat.canbus.features import INJECTED_VALIDATION, RECORDINGS, SCHEMA, VALIDATION
from kdgat.canbus.summary import DataSummary, InjectionSummary
from kdgat.graphs.store import GraphStore
from kdgat.run.directory import OutputDirectory
from kdgat.run.inputs import input_path
from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import StageInputError
from kdgat.stage.outcome import Finished, Outcome
from kdgat.stage.phase import phase_progress
from kdgat.stage.spec import StageSpec

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
        nodes_path = directory.path / f"{NODES_PREFIX}{split}.npz"
        if not (path.is_file() and nodes_path.is_file()):  # a stage that was stopped resumes with the next split
            stores = [GraphStore.open(input_path(spec, directory, name), SCHEMA) for name in pool.names]
            scores = detectors.score(pool, wanted, phase_progress(directory, split))
            scores |= baseline_scores(pool.parts, stores[0].node_features)
            write_node_scores(nodes_path, make_node_scores(pool.parts, detectors.node_scores))
            names, is_virtual = (
                [store.attributes[RECORDINGS] for store in stores],
                [name != split for name in pool.names],
            )
            learned = detectors.learned_from(pool) if split == VALIDATION else None
            write_table(path, make_table(pool.parts, names, scores, is_virtual, learned))
        artifacts |= {artifact: path.name, f"{NODES_PREFIX}{split}": nodes_path.name}
        table = read_table(path)
        metrics[f"num_windows_{split}"] = float(table.num_windows)
        logger.info("%s: %d windows scored by %s", split, table.num_windows, ", ".join(table.scores))
    artifacts |= write_beside_scores(spec, directory, detectors, weights, pools)
    return Finished(metrics=metrics, artifacts=artifacts)


def collect_results(output: OutputDirectory, config: EvaluationConfig | None = None) -> Results:
    """Make the results of a finished run from its evaluation stages: writes `results.json` and `scores/*.npz`.

    Args:
        output: the run.
        config: how to decide; by default the section `evaluation` of the run's configuration.

    Raises:
        RunError: if no evaluation stage of the run has finished.
    """
    run = FinishedCanRun(output)
    config = config or run.evaluation_config()
    validation = run.tables(VALIDATION)
    default_detector = choose_detector(validation, config)
    tests = {name.removeprefix(TEST_PREFIX): run.tables(name) for name in run.test_splits()}
    data = run.summary_of("data_summary", DataSummary)
    accumulation = learn_accumulation(default_detector, validation, run.node_scores(VALIDATION), config)
    report = Measurements(
        default_detector, config, validation, tests, accumulation, lambda name: run.node_scores(f"{TEST_PREFIX}{name}")
    )
    results = report.results(
        run,
        data=data or DataSummary(),
        injection=run.summary_of("injection_summary", InjectionSummary),
        parameter_counts=run.parameter_counts(),
        training_curves=run.training_curves(),
    )
    for scenario, told in explanations_of(run, default_detector, tests).items():
        results.scenarios[scenario] = results.scenarios[scenario].model_copy(update={"explanations": told})
    for scenario, scores in report.scores.items():
        write_scores(scores_path(output.path, scenario), scores)
    copy_beside_results(run, default_detector)
    results.write(output.results_path)
    return results
