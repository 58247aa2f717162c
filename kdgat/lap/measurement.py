"""Measure and check methods on the instances of a test store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kdgat.lap.certificate import Problem, check_assignment, check_label
from kdgat.lap.contenders import TRAINED, Answer, Contender, Duals, contenders
from kdgat.lap.results import EvaluationConfig, Kind, Measurement
from kdgat.lap.scaling import SCALE_RANK, unit_of
from kdgat.lap.store import LapStore
from kdgat.lap.timing import Timed, take_turns

logger = logging.getLogger(__name__)


class Measurer:
    """The methods of an evaluation, loaded once for all stores."""

    def __init__(self, config: EvaluationConfig, weights: Mapping[str, Path]) -> None:
        """Load the networks.

        Args:
            config: what is measured.
            weights: training stage -> weights file, in the order of training.
        """
        from kdgat.lap.predictor import Predictor

        self.config = config
        self.final_method = f"{TRAINED} {list(weights)[-1]}" if weights else None
        kept = dict(weights) if config.every_stage else dict(list(weights.items())[-1:])
        predictors = {stage: Predictor.load(path) for stage, path in kept.items()}
        self.parameter_counts = {
            f"{TRAINED} {stage}": sum(weight.numel() for weight in predictor.model.parameters())
            for stage, predictor in predictors.items()
        }
        self.contenders = contenders(config.methods, config.solvers, predictors)
        final = list(predictors)[-1:]
        self.checker = contenders(
            ("trained", "column or row minima"), config.solvers[:1], {stage: predictors[stage] for stage in final}
        )[-1]

    def indices(self, path: Path, size: int) -> dict[str, NDArray[np.int64]]:
        """Return the indices of a store's instances of a size, by wanted family."""
        store = LapStore.open(path)
        present = list(dict.fromkeys(store.families()))
        wanted = [name for name in present if self.config.families is None or name in self.config.families]
        found = {family: np.asarray(store.indices(size=size, family=family)) for family in wanted}
        return {family: indices for family, indices in found.items() if indices.size}

    def measure(
        self, path: Path, indices: NDArray[np.int64], report: Callable[[int, int], None]
    ) -> tuple[list[Measurement], int]:
        """Measure the first instances by every method, and check the others by the final one.

        Returns:
            the measurements, and how many instances were checked.

        Raises:
            CertificateError: if any answer, or any label, is wrong.
        """
        store = LapStore.open(path)
        rows: list[Measurement] = []
        checked = indices if self.config.check_all else indices[: self.config.measured_instances]
        for done, index in enumerate(checked.tolist()):
            record = store.record(index)
            name = f"{path.name}, instance {index} ({record.family}, n = {record.n})"
            problem = Problem(name, record.cost, record.mask, record.u, record.v, record.optimum)
            check_label(problem)
            if done < self.config.measured_instances:
                rows += measure_problem(problem, record.family, index, self.contenders, self.config)
            else:
                answer = self.checker.call(problem, None)
                check_assignment(problem, self.checker.name, answer.rows, answer.columns)
            report(done + 1, len(checked))
        return rows, len(checked)


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
    """
    error = (u - u.mean()) - (label - label.mean())
    variance = float(np.square(label - label.mean()).sum())
    return {
        "u_r2": 1.0 - float(np.square(error).sum()) / variance if variance > 0.0 else None,
        "u_mae": float(np.abs(error).mean()) / unit,
    }


def _allowed(problem: Problem) -> NDArray[np.float64]:
    return problem.cost if problem.mask is None else np.where(problem.mask, np.inf, problem.cost)


def bound_of(problem: Problem, duals: Duals) -> float:
    """Return the lower bound that the duals of the rows prove: v by the min-trick, then u as large as v allows."""
    cost = _allowed(problem)
    v = (cost - duals[0][:, None]).min(axis=0)
    return float(v.sum() + (cost - v[None, :]).min(axis=1).sum())


def column_minima_of(problem: Problem) -> Duals:
    """Return v = column minima, u = 0: what a solver without any warm start begins from."""
    return np.zeros(len(problem.u)), _allowed(problem).min(axis=0)


def scale_of(problem: Problem) -> float:
    """Return the instance's scale: how far the eighth cheapest entry of a row lies above the cheapest, on average."""
    cost = _allowed(problem)
    reduced = cost - cost.min(axis=0)
    rank = min(SCALE_RANK, reduced.shape[1])
    return unit_of(np.sort(np.partition(reduced, rank - 1, axis=1)[:, :rank], axis=1))
