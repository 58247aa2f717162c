"""Every family of instances, of all small sizes, solved as scipy does; tests/assignment/agreement.py does more."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment as scipy_assignment

from kdgat.assignment import solve
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "lap"


def agrees_with_scipy(family: str, n: int, seed: int, method: str) -> bool:
    """Return whether an instance's optimum is scipy's."""
    instance = generate(family, n, seed)
    blocked = instance.cost if instance.mask is None else np.where(instance.mask, np.inf, instance.cost)
    optimum = instance.cost[scipy_assignment(blocked)].sum()
    u = np.random.default_rng(seed).normal(size=n) if seed % 4 == 3 else None
    found = solve(instance.cost, u, mask=instance.mask, method=method)
    return bool(abs(found.cost - optimum) <= 1e-10 * max(1e-300, np.abs(instance.cost).max()) * n)


@pytest.mark.parametrize("family", DISTRIBUTIONS)
def test_small_instances_of_every_family(family: str) -> None:
    for seed, n in enumerate([1, 2, 3, 5, 17, 33, 64, 100]):
        for method in ("core", "dense"):
            assert agrees_with_scipy(family, n, seed, method), (n, seed, method)


@pytest.mark.nightly  # the same as above, thirty times as often
@pytest.mark.parametrize("family", DISTRIBUTIONS)
def test_hundreds_of_instances_of_every_family(family: str) -> None:
    sizes = np.random.default_rng(11).integers(1, 201, 300)
    for seed, n in enumerate(sizes.tolist()):
        assert agrees_with_scipy(family, n, 1000 + seed, "core" if seed % 3 else "dense"), (n, 1000 + seed)


def test_constant_and_tied_matrices_of_a_size_with_long_lists() -> None:
    rng = np.random.default_rng(0)
    blocks = np.where(np.add.outer(np.arange(300), np.arange(300)) % 7 == 0, 0.0, 1.0)
    for cost in (np.zeros((300, 300)), blocks, rng.integers(0, 2, (300, 300)), np.ones((200, 400))):
        found = solve(cost)
        assert found.cost == cost[scipy_assignment(cost)].sum()
        assert found.gap == 0.0


def test_very_sparse_matrix_of_one_matching() -> None:
    rng = np.random.default_rng(0)
    chosen = rng.permutation(400)
    mask = np.ones((400, 400), bool)
    mask[np.arange(400), chosen] = False
    mask[np.arange(399), chosen[1:]] = False  # a chain: only one matching remains
    found = solve(rng.random((400, 400)), mask=mask)
    assert found.columns.tolist() == chosen.tolist()


def test_hard_matrix_hands_over_to_dense_rows_and_is_exact() -> None:
    ranks = np.arange(1.0, 601.0)
    found = solve(np.outer(ranks, ranks))
    assert found.cost == (ranks * ranks[::-1]).sum()
    assert found.gap == 0.0


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no OR-Library files in {os.fspath(SHARED)}")
@pytest.mark.parametrize(("name", "optimum"), [("assign500", 991.0), ("assign600", 1176.0)])
def test_instances_of_the_or_library(name: str, optimum: float) -> None:
    numbers = np.array((SHARED / f"{name}.txt").read_text().split(), float)
    n = int(numbers[0])
    for method in ("core", "dense"):
        found = solve(numbers[1:].reshape(n, n), method=method)
        assert (found.cost, found.gap) == (optimum, 0.0)
