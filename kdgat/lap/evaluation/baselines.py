"""The methods that an evaluation compares: scipy, lapx, and our solver with each way to get duals to start from."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment import Assignment, solve
from kdgat.assignment import warm_start as seeds
from kdgat.assignment.exact import solve_from
from kdgat.assignment.matrix import make_matrix
from kdgat.base.machine_code import compiled
from kdgat.lap.evaluation.results import Kind
from kdgat.lap.evaluation.sinkhorn import sinkhorn
from kdgat.lap.graphs.bipartite import find_neighbours
from kdgat.lap.instances.label import Problem
from kdgat.lap.sections import GraphConfig, Method, Solver

if TYPE_CHECKING:
    from kdgat.lap.models.predictor import Predictor

Duals = tuple[NDArray[np.float64], NDArray[np.float64]]
MakeDuals = Callable[[Problem], Duals | None]

SINKHORN_ITERATIONS: Final = 30
TRAINED: Final = "trained"
NUM_SWEEPS = 12
FIRST_TEMPERATURE, LAST_TEMPERATURE = 0.5, 0.02  # in units of the instance's scale
FAR = 20.0  # temperatures: what lies further above the minimum adds nothing that float64 sums would show


@dataclass(frozen=True)
class Answer:
    """What a method made of an instance; competitors tell no more than the matching."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    seed_s: float | None = None
    duals: Duals | None = None  # before the solver
    assignment: Assignment | None = None


@dataclass(frozen=True)
class Contender:
    """A method, ready to be called; `ready` makes what a method needs of an instance that is not its work to make."""

    name: str
    kind: Kind
    solver: str | None
    call: Callable[[Problem, Any], Answer]
    ready: Callable[[Problem], Any] = lambda problem: None

    @property
    def key(self) -> str:
        """Return a name that is unique among the methods of an evaluation."""
        return self.name if self.solver is None else f"{self.name} ({self.solver})"


def baselines(
    methods: Sequence[Method], solvers: Sequence[Solver], predictors: Mapping[str, Predictor]
) -> list[Contender]:
    """Return the methods of the kinds that are wanted and, for lapx, installed; each seed is measured with each solver.

    `predictors` are by training stage.
    """
    found: list[Contender] = []
    if "scipy" in methods:
        found.append(Contender("scipy", Kind.COMPETITOR, None, _call_scipy, with_infinity))
    if "lapx" in methods and importlib.util.find_spec("lap") is not None:
        found.append(Contender("lapx", Kind.COMPETITOR, None, _call_lapx, _with_large_costs))
    rules: dict[str, tuple[Kind, MakeDuals]] = {
        "column or row minima": (Kind.UNTRAINED, lambda problem: None),  # the solver's own choice
        "Sinkhorn": (
            Kind.UNTRAINED,
            lambda problem: sinkhorn(problem.cost, SINKHORN_ITERATIONS, mask=problem.mask),
        ),
        "neighbour sweeps": (Kind.UNTRAINED, lambda problem: neighbour_sweeps(problem.cost, problem.mask)),
        "oracle": (Kind.ORACLE, lambda problem: (problem.u, problem.v)),
    }
    for name in (seeds.COLUMN_MINIMA, seeds.ROW_MINIMA):
        if name in methods:
            found += [_from_minima(name, solver) for solver in solvers]
    for stage, predictor in predictors.items():
        rules[f"{TRAINED} {stage}"] = (Kind.TRAINED, _predicting(predictor))
    if predictors:  # what of the last one is its form, and what its training
        fresh = list(predictors.values())[-1].untrained()
        rules["untrained network"] = (Kind.UNTRAINED, _predicting(fresh))
    for name, (kind, make) in rules.items():
        if name in methods or (kind is Kind.TRAINED and TRAINED in methods):
            found += [_seeded(name, kind, make, solver) for solver in solvers]
    return found


def _predicting(predictor: Predictor) -> MakeDuals:
    def predict(problem: Problem) -> Duals:
        prediction = predictor.predict(problem.cost, problem.mask)
        return prediction.u, prediction.v

    return predict


def _seeded(name: str, kind: Kind, make: MakeDuals, solver: Solver) -> Contender:
    def call(problem: Problem, ready: object) -> Answer:
        started = time.perf_counter()
        duals = make(problem)
        seed_s = None if duals is None else time.perf_counter() - started
        u, v = (None, None) if duals is None else duals
        assignment = solve(problem.cost, u, v, mask=problem.mask, method=solver)
        return Answer(assignment.rows, assignment.columns, seed_s, duals, assignment)

    return Contender(name, kind, solver, call)


def _from_minima(name: str, solver: Solver) -> Contender:
    """Return our solver from one kind of minima alone, as if it knew no other."""

    def call(problem: Problem, ready: object) -> Answer:
        matrix = make_matrix(problem.cost, problem.mask)
        started = time.perf_counter()
        rows, columns = seeds.line_minima(matrix)
        is_column = name == seeds.COLUMN_MINIMA
        seed = seeds.column_seed(matrix, columns) if is_column else seeds.row_seed(matrix, rows, seeds.ROW_MINIMA)
        seed_s = time.perf_counter() - started
        assignment = solve_from(matrix, seed, solver)
        return Answer(assignment.rows, assignment.columns, seed_s, (seed.u, seed.v), assignment)

    return Contender(name, Kind.UNTRAINED, solver, call)


def with_infinity(problem: Problem) -> NDArray[np.float64]:
    """Return the costs [n, n], infinite where a pair is forbidden."""
    return problem.cost if problem.mask is None else np.where(problem.mask, np.inf, problem.cost)


def _call_scipy(problem: Problem, cost: NDArray[np.float64]) -> Answer:
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost)
    return Answer(rows, columns)


def _with_large_costs(problem: Problem) -> NDArray[np.float64]:
    """Give forbidden pairs a cost that no optimal matching can afford: lapx has no other way to say it."""
    if problem.mask is None:
        return problem.cost
    allowed = problem.cost[~problem.mask]
    spread = float(allowed.max() - allowed.min())
    return np.where(problem.mask, float(allowed.max()) + problem.cost.shape[0] * spread + 1.0, problem.cost)


def _call_lapx(problem: Problem, cost: NDArray[np.float64]) -> Answer:
    import lap

    _, columns, _ = lap.lapjv(cost)
    return Answer(np.arange(cost.shape[0]), np.asarray(columns, np.int64))


@compiled
def _soft_minima(indices, costs, other, own, temperature):  # type: ignore[no-untyped-def]
    """Write the soft minimum of costs [n, R] - other[indices] of every node to own [n]; -1 ends a list."""
    for node in range(indices.shape[0]):
        least = np.inf
        count = 0
        for place in range(indices.shape[1]):
            neighbour = indices[node, place]
            if neighbour < 0:
                break
            least = min(least, costs[node, place] - other[neighbour])
            count += 1
        if count == 0:
            continue
        total = 0.0
        for place in range(count):
            above = (costs[node, place] - other[indices[node, place]] - least) / temperature
            if above < FAR:
                total += math.exp(-above)
        own[node] = least - temperature * math.log(total)


@compiled
def _sweep(row_columns, row_costs, column_rows, column_costs, u, v, temperatures, is_bounded):  # type: ignore[no-untyped-def]
    for temperature in temperatures:
        _soft_minima(row_columns, row_costs, v, u, temperature)
        _soft_minima(column_rows, column_costs, u, v, temperature)
        if is_bounded:
            for column in range(len(v)):
                v[column] = min(v[column], 0.0)


def neighbour_sweeps(cost: NDArray[np.floating], mask: NDArray[np.bool_] | None = None) -> Duals:
    """Return duals u [n], v [m] of a cost matrix [n, m] with n <= m, not feasible yet; mask True = forbidden.

    One sweep gives every row, then every column, a soft minimum of the reduced costs of its nearest neighbours at a
    falling temperature: Sinkhorn's iteration in the log domain (Cuturi 2013) on n (R + K) entries instead of n^2. What
    a network on the same graph has to beat.
    """
    found = find_neighbours(np.ascontiguousarray(cost), mask, GraphConfig())
    unit = found.scaling.unit
    u, v = np.zeros(cost.shape[0]), np.zeros(cost.shape[1])
    temperatures = unit * np.geomspace(FIRST_TEMPERATURE, LAST_TEMPERATURE, NUM_SWEEPS)
    is_bounded = cost.shape[0] < cost.shape[1]
    _sweep(found.row_columns, found.row_costs, found.column_rows, found.column_costs, u, v, temperatures, is_bounded)
    return u + found.scaling.row_base, v + found.scaling.column_base
