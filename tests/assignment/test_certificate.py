"""The certificate: what it accepts is optimal, and wrong answers of every kind are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kdgat.assignment import Assignment, CertificateError, certify, solve
from kdgat.assignment.exact import Found, proven
from kdgat.assignment.matrix import make_matrix
from kdgat.assignment.result import Counters
from kdgat.assignment.warm_start import Seed
from kdgat.lap.instances.label import Problem, check_assignment, check_label

# The three by three example of the literature on learned duals, with its right answer.
COST = np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])
LABELLED = Problem("example", COST, None, np.array([1.0, 0.0, 1.0]), np.array([2.0, 0.0, 1.0]), 5.0)
OPTIMAL = np.array([1, 0, 2])
ROWS = np.arange(3)


def test_an_optimal_matching_passes_and_its_duals_prove_it() -> None:
    check_label(LABELLED)
    check_assignment(LABELLED, "solver", ROWS, OPTIMAL)
    check_assignment(LABELLED, "solver", ROWS[::-1], OPTIMAL[::-1])


@pytest.mark.parametrize("columns", [[0, 1, 2], [1, 1, 2], [1, 0, 0]])
def test_a_dearer_matching_and_one_that_uses_a_column_twice_are_refused(columns: list[int]) -> None:
    with pytest.raises(CertificateError, match=r"example: solver (costs|does not match)"):
        check_assignment(LABELLED, "solver", ROWS, np.array(columns))


def test_a_forbidden_pair_is_refused_even_if_it_is_cheap() -> None:
    mask = np.zeros((3, 3), bool)
    mask[0, 1] = True
    with pytest.raises(CertificateError, match="forbidden"):
        check_assignment(replace(LABELLED, mask=mask), "solver", ROWS, OPTIMAL)


def test_a_label_whose_duals_are_infeasible_is_refused() -> None:
    with pytest.raises(CertificateError, match="not feasible, a reduced cost is -1"):
        check_label(replace(LABELLED, u=np.array([2.0, 0.0, 1.0]), optimum=6.0))


def test_a_label_that_its_duals_do_not_reach_is_refused() -> None:
    with pytest.raises(CertificateError, match="proves nothing"):
        check_label(replace(LABELLED, optimum=6.0))


def test_duals_may_be_anything_where_a_pair_is_forbidden() -> None:
    mask = np.zeros((3, 3), bool)
    mask[2, 0] = True
    cost = COST.copy()
    cost[2, 0] = -100.0
    check_label(replace(LABELLED, cost=cost, mask=mask))


def random_problem(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None, bool]:
    """Return costs of one side's own scale or of rows that span decades, perhaps with a mask, and the direction."""
    n, m = rng.integers(2, 12, 2)
    m = n if rng.random() < 0.4 else m
    cost = rng.normal(size=(n, m)) if rng.random() < 0.5 else rng.integers(-50, 50, (n, m)).astype(float)
    if rng.random() < 0.4:
        cost = cost * 10.0 ** rng.integers(-4, 4, (n, 1))
    mask = rng.random((n, m)) < 0.3
    size = min(n, m)
    mask[rng.permutation(n)[:size], rng.permutation(m)[:size]] = False
    return cost, mask if rng.random() < 0.5 else None, bool(rng.random() < 0.4)


def changed(rng: np.random.Generator, values: np.ndarray, value: float) -> np.ndarray:
    """Return a copy with one entry set."""
    copy = values.copy()
    copy[rng.integers(copy.size)] = value
    return copy


def corrupted(
    rng: np.random.Generator, cost: np.ndarray, mask: np.ndarray | None, maximize: bool, found: Assignment
) -> list[tuple[str, np.ndarray, np.ndarray | None, Assignment]]:
    """Return wrong answers of every kind: name, costs, mask, answer."""
    n, m = cost.shape
    wrong = []

    def say(name: str, costs: np.ndarray = cost, forbidden: np.ndarray | None = mask, **parts: object) -> None:
        wrong.append((name, costs, forbidden, replace(found, **parts)))

    scale = float(np.abs(cost).max()) or 1.0
    rows, columns, u, v = found.rows, found.columns, found.u, found.v
    a, b = rng.permutation(rows.size)[:2]
    same_column, same_row = columns.copy(), rows.copy()
    same_column[a], same_row[a] = columns[b], rows[b]
    say("a column twice", columns=same_column)
    say("a row twice", rows=same_row)
    closed = np.zeros((n, m), bool) if mask is None else mask.copy()
    closed[rows[a], columns[a]] = True
    say("forbidden", forbidden=closed)
    swapped = columns.copy()
    swapped[[a, b]] = columns[[b, a]]
    total = float(cost[rows, swapped].sum())
    paid = np.abs(cost[rows[[a, b]], swapped[[a, b]]]).max()
    if abs(total - found.cost) > 1e-6 * paid and (mask is None or not mask[rows, swapped].any()):
        say("swapped", columns=swapped)
        say("swapped, with its own total", columns=swapped, cost=total)
        for shift in (1e9, 1e18, 1e300):
            say("swapped, beside huge duals", columns=swapped, cost=total, u=u + shift, v=v - shift, dual_bound=total)
    move = scale * 10.0 ** -rng.integers(0, 5) * rng.choice([-1.0, 1.0])
    say("a dual of a row moved", u=u + move * np.eye(n)[rng.integers(n)])
    say("a dual of a column moved", v=v + move * np.eye(m)[rng.integers(m)])
    say("duals of rows shifted", u=u + move)
    say("duals of columns shifted", v=v + move)
    if n != m:
        say("all duals shifted", u=u + move, v=v - move)
    say("duals of both sides exchanged", u=-u - move, v=-v)
    for bad in (np.nan, np.inf, -np.inf):
        say("no number in u", u=changed(rng, u, bad))
        say("no number in v", v=changed(rng, v, bad))
        say("no number as cost", cost=bad)
        say("no number as bound", dual_bound=bad)
    say("another total", cost=found.cost + scale * 1e-6)
    say("another bound", dual_bound=found.dual_bound - scale * 1e-6)
    say("a row is missing", rows=rows[:-1], columns=columns[:-1])
    say("a row too many", rows=np.append(rows, 0), columns=np.append(columns, 0))
    say("columns of another shape", columns=columns[None])
    say("columns as fractions", columns=columns + 0.0)
    say("column below 0", columns=changed(rng, columns, -1))
    say("column beyond", columns=changed(rng, columns, m))
    say("row beyond", rows=changed(rng, rows, n))
    say("too few duals", u=u[:-1])
    say("too many duals", v=np.append(v, 0.0))
    allowed = np.ones((n, m), bool) if mask is None else ~mask
    i, j = np.argwhere(allowed)[rng.integers(allowed.sum())]
    cheaper = cost.copy()
    cheaper[i, j] = u[i] + v[j] + (scale if maximize else -scale)
    say("a cheaper entry overlooked", costs=cheaper)
    return wrong


def test_ten_thousand_corrupted_answers_are_refused_and_the_right_ones_are_not() -> None:
    rng = np.random.default_rng(3)
    refused: Counter[str] = Counter()
    while refused.total() < 10_000:
        cost, mask, maximize = random_problem(rng)
        found = solve(cost, mask=mask, maximize=maximize)
        proof = certify(cost, found, mask=mask, maximize=maximize)
        assert 0.0 <= proof.gap <= proof.tolerance
        order = rng.permutation(found.rows.size)
        certify(
            cost, replace(found, rows=found.rows[order], columns=found.columns[order]), mask=mask, maximize=maximize
        )
        for name, costs, forbidden, answer in corrupted(rng, cost, mask, maximize, found):
            try:
                certify(costs, answer, mask=forbidden, maximize=maximize)
            except CertificateError:
                refused[name] += 1
            else:
                pytest.fail(f"accepted: {name}, {costs!r}, {forbidden!r}, {maximize}, {answer}")
    assert min(refused.values()) > 50, refused


def test_an_error_in_a_cheap_row_is_refused_beside_dear_ones() -> None:
    cost = np.array([[1e-3, 2e-3, 9e9], [5e-3, 1e-3, 9e9], [9e9, 9e9, 1e9]])
    found = solve(cost)
    certify(cost, found)
    wrong = replace(found, columns=np.array([1, 0, 2]), cost=7e-3 + 1e9)
    with pytest.raises(CertificateError, match=r"row 1 could be matched cheaper by 0\.00"):
        certify(cost, wrong)


def test_the_solver_does_not_return_a_matching_that_uses_a_column_twice() -> None:
    matrix = make_matrix(np.array([[1.0, 5.0], [1.0, 5.0]]))
    duals = (np.ones(2), np.zeros(2))
    twice = Found(*duals, np.array([0, 0]), np.ones(2), Counters("x", 0, 0, 0))
    with pytest.raises(CertificateError, match="column 0 is matched twice; this is a defect of the solver"):
        proven(matrix, Seed("x", *duals), twice)
