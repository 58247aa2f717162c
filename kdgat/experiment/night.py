"""Nights of an experiment, without what executes them: why one trains, what its model is, and whether it is better.

The new model and the one in service are measured on the same samples: those that the new run's preparation has kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from kdgat.base import UserError, unknown_key_text
from kdgat.base.configuration import without_keys
from kdgat.experiment.results import knows_direction
from kdgat.family.night import ModelSource, content_hash
from kdgat.registry import Promotion
from kdgat.run import WEIGHTS, FinishedRun, OutputDirectory, Run
from kdgat.stage import RunDirectory, StageInput

PARTS: Final = ("files", "code")  # of what stages depend on; the rest is the configuration


def digests(run: Run) -> dict[str, str]:
    """Return the digests of what a planned run depends on: its files, its code, its configuration."""
    stages = [(one, without_keys(one.config, one.execution_keys)) for one in run.plan]
    found = {part: _digest(sorted({config[part] for _, config in stages if part in config})) for part in PARTS}
    rest = [
        [one.name, one.code_version, sorted(one.inputs), {key: config[key] for key in config if key not in PARTS}]
        for one, config in stages
    ]
    return {**found, "configuration": _digest(rest)}


def _digest(content: Any) -> str:
    """Hash plain data as the first ledgers have it: another way would train all deployed experiments again."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say what is not as it was; empty if all is."""
    return " and ".join(name for name, digest in now.items() if before.get(name) != digest)


@dataclass(frozen=True)
class TrainedModel:
    """A finished run as a model of a registry; its stages' specs say what its source was."""

    source: ModelSource
    scores: dict[str, float]  # metric, as test.error -> mean over seeds
    samples: dict[str, StageInput]  # split -> file on which they were measured

    @classmethod
    def of_run(cls, output: OutputDirectory) -> TrainedModel:
        """Collect it; RunError if the run has not finished."""
        run = FinishedRun(output)
        evaluations = list(run.evaluations().values())
        samples = _samples(output.stage_directory(evaluations[0]))
        source = ModelSource.of_run(
            run,
            (WEIGHTS,),
            run.index.config,
            config_hash=content_hash(run.index.config)[:16],
            measured_on={split: one.sha256[:16] for split, one in samples.items()},
        )
        return cls(source, mean_scores(run.outcome(record).metrics for record in evaluations), samples)


def mean_scores(metrics: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the means over seeds of what all of them have measured."""
    found = list(metrics)
    return {name: fmean(one[name] for one in found) for name in found[0] if all(name in one for one in found)}


def by_split(scores: Mapping[str, float]) -> dict[str, dict[str, float | None]]:
    """Return scores as a registry has them: the split in the place of a scenario.

    >>> by_split({"test.error": 0.25})
    {'test': {'error': 0.25}}
    """
    found: dict[str, dict[str, float | None]] = {}
    for name, value in scores.items():
        split, _, metric = name.partition(".")
        found.setdefault(split, {})[metric] = value if math.isfinite(value) else None
    return found


def chosen_metric(metric: str, scores: Mapping[str, float]) -> str:
    """Return by which metric models are compared: the one that is named, or the only one there is."""
    if metric in scores:
        return metric
    if not metric and len(scores) == 1:
        return next(iter(scores))
    listed = unknown_key_text(metric, list(scores)) if metric else f"name one of {', '.join(scores) or 'none'}"
    raise UserError(f"metric={metric!r}: {listed}, as the results have them")


def higher_is_better(metric: str, mode: str | None) -> bool:
    """Return whether more of a metric is better, as `mode` or its name says; UserError if neither does."""
    known = {"max": True, "min": False}.get(mode or "", knows_direction(metric))
    if known is None:
        raise UserError(f"mode: the name of {metric} does not say whether more of it is better: give mode=min or max")
    return known


def decide(
    metric: str,
    new: Mapping[str, float],
    current: Mapping[str, float] | None,
    tolerance: float = 0.0,
    mode: str | None = None,
) -> Promotion:
    """Decide whether the new model goes into service: not if it is worse by more than the tolerance.

    >>> decide("test.error", {"test.error": 0.3}, {"test.error": 0.2}).describe()
    'test.error is 0.3, worse than 0.2 of the model in service'
    """
    after = new[metric]
    if not math.isfinite(after):
        return Promotion(False, (f"{metric} is {after}",))
    if current is None:
        return Promotion(True, (f"no model was in service before; {metric} is {after:.4g}",))
    before = current.get(metric, math.nan)
    if not math.isfinite(before):
        return Promotion(False, (f"{metric} of the model in service is {before} on these samples",))
    loss = before - after if higher_is_better(metric, mode) else after - before
    how = "worse than" if loss > 0 else "better than" if loss < 0 else "the same as"
    allowed = f", within the tolerance of {tolerance:g}" if 0 < loss <= tolerance else ""
    text = f"{metric} is {after:.6g}, {how} {before:.6g} of the model in service{allowed}"
    return Promotion(loss <= tolerance, (text,))


def _samples(evaluation: RunDirectory) -> dict[str, StageInput]:
    inputs = {name: one for name, one in evaluation.read_spec().inputs.items() if name != WEIGHTS}
    return {
        name: one.model_copy(update={"path": str(one.resolve(evaluation.path).resolve())})
        for name, one in inputs.items()
    }
