"""Measure and check methods on the instances of a test store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.lap.evaluation.baselines import TRAINED, Answer, Contender, Duals, baselines, with_infinity
from kdgat.lap.evaluation.results import Kind, Measurement
from kdgat.lap.evaluation.timing import Timed, take_turns
from kdgat.lap.graphs.scaling import SCALE_RANK, unit_of
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.label import Problem, check_assignment, check_label
from kdgat.lap.instances.records import label
from kdgat.lap.instances.store import LapStore
from kdgat.lap.sections import EvaluationConfig

CHECKED_TOGETHER: Final = 16
WARM_UP_SIZE: Final = 64


@dataclass(frozen=True)
class Part:
    """Instances that are measured or checked in one go, so that a stopped evaluation repeats no more than these."""

    path: Path  # of the store
    size: int
    family: str
    indices: tuple[int, ...]
    is_measured: bool  # by every method; else checked by one

    @property
    def name(self) -> str:
        """Return a name that no other part of the evaluation has."""
        return f"{self.size}-{self.family}-{self.indices[0]:08d}"


class Measurer:
    """The methods of an evaluation, loaded once for all stores."""

    def __init__(self, config: EvaluationConfig, weights: Mapping[str, Path]) -> None:
        """Load the networks.

        Args:
            config: what is measured.
            weights: training stage -> weights file, in the order of training.
        """
        from kdgat.lap.models.predictor import Predictor

        self.config = config
        self.final_method = f"{TRAINED} {list(weights)[-1]}" if weights else None
        kept = dict(weights) if config.every_stage else dict(list(weights.items())[-1:])
        predictors = {stage: Predictor.load(path) for stage, path in kept.items()}
        self.parameter_counts = {
            f"{TRAINED} {stage}": sum(weight.numel() for weight in predictor.model.parameters())
            for stage, predictor in predictors.items()
        }
        self.baselines = baselines(config.methods, config.solvers, predictors)
        final = list(predictors)[-1:]
        self.checker = baselines(
            ("trained", "column or row minima"), config.solvers[:1], {stage: predictors[stage] for stage in final}
        )[-1]
        compile_methods([*self.baselines, self.checker])

    def parts(self, path: Path, size: int) -> list[Part]:
        """Divide the instances of a size in a store into parts that take seconds to a minute each."""
        store = LapStore.open(path)
        families = list(dict.fromkeys(store.families()))
        found: list[Part] = []
        for family in families:
            if self.config.families is not None and family not in self.config.families:
                continue
            indices = store.indices(size=size, family=family).tolist()
            measured = self.config.measured_instances
            found += [Part(path, size, family, (index,), True) for index in indices[:measured]]
            others = indices[measured:] if self.config.check_all else []
            for start in range(0, len(others), CHECKED_TOGETHER):
                found.append(Part(path, size, family, tuple(others[start : start + CHECKED_TOGETHER]), False))
        return found

    def work(self, part: Part) -> list[Measurement]:
        """Measure the instance of a part by every method, or check its instances by the final one.

        Raises:
            CertificateError: if any answer, or any label, is wrong.
        """
        store = LapStore.open(part.path)
        rows: list[Measurement] = []
        for index in part.indices:
            record = store.record(index)
            name = f"{part.path.name}, instance {index} ({record.family}, n = {record.n})"
            problem = Problem(name, record.cost, record.mask, record.u, record.v, record.optimum)
            check_label(problem)
            if part.is_measured:
                rows += measure_problem(problem, record.family, index, self.baselines, self.config)
            else:
                answer = self.checker.call(problem, None)
                check_assignment(problem, self.checker.name, answer.rows, answer.columns)
        return rows


def compile_methods(methods: Sequence[Contender]) -> None:
    """Call methods on small problems, so that no measurement holds the compiling or loading of code."""
    for family in ("uniform", "sparse"):  # masks run code of their own
        record = label(generate(family, WARM_UP_SIZE, 0))
        problem = Problem("warm-up", record.cost, record.mask, record.u, record.v, record.optimum)
        for method in methods:
            method.call(problem, method.ready(problem))


def measure_problem(
    problem: Problem, family: str, index: int, methods: list[Contender], config: EvaluationConfig
) -> list[Measurement]:
    """Run all methods in turn on one instance; CertificateError if any answer of any call is wrong."""

    def bound(method: Contender) -> Callable[[], Answer]:
        ready = method.ready(problem)
        return lambda: method.call(problem, ready)

    timed = take_turns(
        {method.key: bound(method) for method in methods}, config.repeats, config.warm_ups, config.patience_s
    )
    for method in methods:
        for answer in timed[method.key].results:
            check_assignment(problem, method.key, answer.rows, answer.columns)
    unit = scale_of(problem)
    reference = problem.optimum - bound_of(problem, column_minima_of(problem))
    return [
        _describe(problem, method, timed[method.key], unit, reference, family=family, index=index) for method in methods
    ]


def _describe(
    problem: Problem,
    method: Contender,
    timed: Timed[Answer],
    unit: float,
    reference: float,
    *,
    family: str,
    index: int,
) -> Measurement:
    answer = timed.result
    values: dict[str, object] = {}
    if answer.assignment is not None:
        counters = answer.assignment.counters
        values = {
            "seed_used": counters.seed,
            "greedy_share": counters.greedy_matches / len(problem.u),
            "augmentations": counters.augmentations,
            "scanned_entries": counters.scanned_columns,
            "gap": _share(problem.optimum - answer.assignment.seed_bound, abs(problem.optimum)),
            "gap_share": _share(problem.optimum - answer.assignment.seed_bound, reference),
        }
    if answer.duals is not None:
        gap = problem.optimum - bound_of(problem, answer.duals)
        values |= {"gap": _share(gap, abs(problem.optimum)), "gap_share": _share(gap, reference)}
        values |= compare_duals(answer.duals[0], problem.u, unit)
    return Measurement(
        family=family,
        size=len(problem.u),
        instance=index,
        method=method.name,
        kind=Kind(method.kind),
        solver=method.solver,
        milliseconds=[1000.0 * seconds for seconds in timed.seconds],
        seed_milliseconds=[1000.0 * result.seed_s for result in timed.results if result.seed_s is not None],
        **values,
    )


def _share(part: float, whole: float) -> float | None:
    """Return max(part, 0) / whole; None where there is nothing to share."""
    return max(part, 0.0) / whole if whole > 0.0 else None


def compare_duals(u: NDArray[np.float64], label: NDArray[np.float64], unit: float) -> dict[str, float | None]:
    """Return R2 and mean absolute error (in units) of u against a label, both centred: (u + c, v - c) is the same.

    Optimal duals are not unique, so even other optimal ones need not reach 1 and 0.
    None where there is nothing to compare with: labels that are all the same, or rows without any spread (unit 0).
    """
    error = (u - u.mean()) - (label - label.mean())
    variance = float(np.square(label - label.mean()).sum())
    return {
        "u_r2": 1.0 - float(np.square(error).sum()) / variance if variance > 0.0 else None,
        "u_mae": float(np.abs(error).mean()) / unit if unit > 0.0 else None,
    }


def bound_of(problem: Problem, duals: Duals) -> float:
    """Return the lower bound that the duals of the rows prove: v by the min-trick, then u as large as v allows."""
    cost = with_infinity(problem)
    v = (cost - duals[0][:, None]).min(axis=0)
    return float(v.sum() + (cost - v[None, :]).min(axis=1).sum())


def column_minima_of(problem: Problem) -> Duals:
    """Return v = column minima, u = 0: what a solver without any warm start begins from."""
    return np.zeros(len(problem.u)), with_infinity(problem).min(axis=0)


def scale_of(problem: Problem) -> float:
    """Return the instance's scale: how far the eighth cheapest entry of a row lies above the cheapest, on average."""
    cost = with_infinity(problem)
    reduced = cost - cost.min(axis=0)
    rank = min(SCALE_RANK, reduced.shape[1])
    return unit_of(np.sort(np.partition(reduced, rank - 1, axis=1)[:, :rank], axis=1))
