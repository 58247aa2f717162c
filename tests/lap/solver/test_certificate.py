from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kdgat.lap.solver.certificate import CertificateError, Problem, check_assignment, check_label

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
