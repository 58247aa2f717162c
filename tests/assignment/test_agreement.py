"""Every entrance agrees with scipy: small, with a background, in a batch, seeded, as drop-in, without compiled code."""

import numpy as np

from kdgat.assignment import fallback
from tests.assignment.agreement import check, check_all, draw


def test_every_entrance_agrees_with_scipy() -> None:
    kinds = check_all(400, seed=0)
    assert len(kinds) == 14


def test_larger_problems_agree_too() -> None:
    check_all(30, seed=1, largest=300)


def test_solver_without_compiled_code_agrees_and_proves_itself() -> None:
    rng = np.random.default_rng(2)
    solved = 0
    for _ in range(200):
        case = draw(rng, 30)
        found = fallback.solve(case.cost, case.mask, case.maximize)
        if found is not None:
            check(case, "fallback", found.rows, found.columns, found.cost)
            slack = (case.cost - found.u[:, None] - found.v) * (-1.0 if case.maximize else 1.0)
            allowed = slack if case.mask is None else slack[~case.mask]
            assert allowed.min() >= -1e-9 * np.abs(case.cost).max()
            solved += 1
    assert solved > 150
