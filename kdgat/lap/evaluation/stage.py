"""The stage `evaluation` and the results of a finished run: what a warm start saves, and whether every answer is right.

Inputs of the stage: `test-<size>` (instance stores) and `weights-<training stage>` in the order of training; the last
ones are the model that users get. Nothing here needs a solver before the stage runs, so that a configuration can be
read anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kdgat.base import validate_config
from kdgat.lap.evaluation.results import Evaluation, LapResults, Measurement, summarise
from kdgat.lap.names import TEST_PREFIX, WEIGHTS_PREFIX
from kdgat.lap.sections import EvaluationConfig, EvaluationStageConfig
from kdgat.run import FinishedRun, OutputDirectory
from kdgat.run.results import origin
from kdgat.stage import Finished, Outcome, RunDirectory, StageInputError, StageSpec, input_path
from kdgat.training import Deadline, Part, Parts

if TYPE_CHECKING:
    from kdgat.lap.evaluation.measurement import Part as MeasuredPart

logger = logging.getLogger(__name__)

EVALUATION_FILE: Final = "evaluation.json"


def run_evaluation(spec: StageSpec, directory: RunDirectory) -> Outcome:
    """Measure every method on the test instances of every size, and check every answer: the artifact `results`.

    A stage that was stopped resumes with the next instance; Paused if the job ends before it is done.

    Raises:
        StageInputError: if there is no test store, or none of its instances is wanted.
        CertificateError: if any answer is not an optimal assignment.
    """
    from kdgat.lap.evaluation.measurement import Measurer  # needs numba and scipy, which a training node may lack
    from kdgat.lap.evaluation.timing import describe_machine
    from kdgat.training import one_thread

    planned = validate_config(EvaluationStageConfig, spec.config)
    config = planned.evaluation
    weights = _weights(spec, directory, planned.stages)
    stores = _test_stores(spec, directory, config)
    checked: dict[str, dict[str, int]] = {}
    measurements: list[Measurement] = []
    with one_thread():
        measurer = Measurer(config, weights)
        wanted = {part.name: part for size, path in stores.items() for part in measurer.parts(path, size)}
        if not wanted:
            raise StageInputError("evaluation: no test instance is of a wanted family: correct evaluation.families")

        def measure(part: MeasuredPart, _: Path) -> list[dict[str, Any]]:
            return [row.model_dump(mode="json") for row in measurer.work(part)]

        parts = Parts(
            directory,
            "instances",
            [Part(name, len(part.indices), partial(measure, part)) for name, part in wanted.items()],
        )
        if paused := parts.make_missing(Deadline.from_environment()):
            return paused
    for part in wanted.values():
        measurements += [Measurement.model_validate(row) for row in parts.summary(part.name)]
        counts = checked.setdefault(str(part.size), {})
        counts[part.family] = counts.get(part.family, 0) + len(part.indices)
    evaluation = Evaluation(
        seed=spec.seed,
        final_method=measurer.final_method,
        num_checked=checked,
        parameter_counts=measurer.parameter_counts,
        machine=describe_machine(),
        measurements=measurements,
    )
    evaluation.write(directory.path / EVALUATION_FILE)
    logger.info("%d instances checked, all optimal", parts.total)
    return Finished(metrics=_metrics(evaluation), artifacts={"results": EVALUATION_FILE})


def _weights(spec: StageSpec, directory: RunDirectory, named: Sequence[str]) -> dict[str, Path]:
    """Return the weights files in the order of training; those that are not `named` come last."""
    given = [name.removeprefix(WEIGHTS_PREFIX) for name in spec.inputs if name.startswith(WEIGHTS_PREFIX)]
    ordered = sorted(given, key=lambda name: named.index(name) if name in named else len(named))
    return {name: input_path(spec, directory, f"{WEIGHTS_PREFIX}{name}") for name in ordered}


def _test_stores(spec: StageSpec, directory: RunDirectory, config: EvaluationConfig) -> dict[int, Path]:
    names = [name for name in spec.inputs if name.startswith(TEST_PREFIX)]
    found = {int(name.removeprefix(TEST_PREFIX)): name for name in names}
    wanted = sorted(found) if config.sizes is None else [size for size in sorted(found) if size in config.sizes]
    if not wanted:
        raise StageInputError(
            f"evaluation needs an input {TEST_PREFIX}<size> of sizes {config.sizes or 'any'} "
            f"(the spec has: {', '.join(sorted(spec.inputs)) or 'none'}): plan it again, or correct evaluation.sizes"
        )
    return {size: input_path(spec, directory, found[size]) for size in wanted}


def _metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return how many times as fast as the best untrained seed the trained model is, by family and size."""
    results = summarise([evaluation], created="")
    metrics = {"num_checked": float(sum(sum(counts.values()) for counts in evaluation.num_checked.values()))}
    for group in results.groups:
        if group.verdict is not None:
            metrics[f"times_untrained_{group.family}_{group.size}"] = group.verdict.ratio
    return metrics


def collect_results(output: OutputDirectory) -> LapResults:
    """Summarise the finished evaluation stages of all seeds of a run: writes `results.json`.

    Raises:
        RunError: if no evaluation stage of the run has finished.
        RunError: if what one has written is damaged.
    """
    run = FinishedRun(output)
    evaluations = run.read_evaluations(Evaluation)
    results = summarise(evaluations, **origin(run.index.config))
    results.write(output.results_path)
    return results
