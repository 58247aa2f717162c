"""Families of assignment problems: what they promise, and that they are the same bits everywhere."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from kdgat.base import UserError
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate
from kdgat.lap.instances.draws import Draws, derived_seed

ALL = list(DISTRIBUTIONS)


@given(family=st.sampled_from(ALL), n=st.integers(1, 40), seed=st.integers(0, 2**63 - 1))
@settings(max_examples=150, deadline=None)
def test_every_family_gives_finite_feasible_square_costs_of_any_size(family: str, n: int, seed: int) -> None:
    instance = generate(family, n, seed)
    assert instance.cost.shape == (n, n)
    assert instance.cost.dtype == np.float64
    assert np.isfinite(instance.cost).all()
    masked = instance.cost.copy()
    if instance.mask is not None:
        assert not instance.cost[instance.mask].any()
        masked[instance.mask] = np.inf
    rows, columns = linear_sum_assignment(masked)  # raises where no assignment is allowed
    assert np.isfinite(masked[rows, columns]).all()


@pytest.mark.parametrize("family", ALL)
def test_the_same_arguments_give_the_same_instance_and_another_seed_another(family: str) -> None:
    first, again, other = (generate(family, 30, seed) for seed in (5, 5, 6))
    assert np.array_equal(first.cost, again.cost)
    assert not np.array_equal(first.cost, other.cost)
    assert first.parameters == again.parameters


# Of the bytes of cost and mask; another machine or another numpy must give the same.
KNOWN = {
    "uniform": "fefe7736bb6c18ec",
    "sparse": "f6afff2a2a21b117",
    "metric": "68d3db1e041aa906",
    "clustered": "fd1547da85e69f90",
    "low_rank": "740752db01f753c5",
    "noisy_linear": "465aedca44240e5e",
    "machol_wien": "54024ecda9c6e51c",
    "tracking": "3f63ff710544bef9",
    "mc64": "d36e08497f7e3f4e",
    "tie": "a6fb1eba130dbe0b",
}


@pytest.mark.parametrize("family", ALL)
def test_instances_are_the_bits_they_have_always_been(family: str) -> None:
    instance = generate(family, 17, 2024)
    digest = hashlib.blake2b(instance.cost.astype("<f8").tobytes(), digest_size=8)
    digest.update(b"" if instance.mask is None else np.packbits(instance.mask).tobytes())
    assert digest.hexdigest() == KNOWN[family]


def test_sparse_keeps_the_share_it_is_asked_for_and_mc64_about_so_many_entries_a_row() -> None:
    for density in (0.1, 0.5):
        mask = generate("sparse", 300, 1, density=density).mask
        assert mask is not None
        assert abs((~mask).mean() - density) < 0.02
    mask = generate("mc64", 300, 1, entries=8).mask
    assert mask is not None
    assert abs((~mask).sum() / 300 - 9) < 0.7  # 8 drawn and the transversal
    cost = generate("mc64", 300, 1).cost
    assert cost.min() == 0.0


def test_metric_uses_two_point_sets_so_that_the_diagonal_is_not_the_answer() -> None:
    cost = generate("metric", 50, 3).cost
    rows, columns = linear_sum_assignment(cost)
    assert np.diag(cost).min() > 0.0
    assert (rows != columns).sum() > 40


def test_clustered_and_low_rank_are_not_clipped() -> None:
    assert generate("clustered", 100, 0).cost.min() < -0.1
    assert generate("low_rank", 100, 0).cost.min() < -1.0


def test_tracked_objects_are_found_again_mostly() -> None:
    cost = generate("tracking", 200, 0).cost
    rows, columns = linear_sum_assignment(cost)
    assert np.median(cost[rows, columns]) < 0.6
    assert cost.min() >= 0.0
    assert cost.max() == 1.0


def test_machol_wien_holds_the_products_of_row_and_column_numbers() -> None:
    cost = generate("machol_wien", 9, 1).cost
    assert np.array_equal(np.sort(cost.ravel()), np.sort(np.multiply.outer(np.arange(1, 10), np.arange(1, 10)).ravel()))


def test_parameters_change_the_instance_and_are_kept() -> None:
    assert generate("tie", 30, 0, bins=2, jitter=0.0).parameters == {"bins": 2, "jitter": 0.0}
    assert set(np.unique(generate("tie", 30, 0, bins=2, jitter=0.0).cost)) == {0.0, 0.5}
    assert generate("clustered", 30, 0, noise_std=0.5).noise_std == 0.5


@pytest.mark.parametrize(
    ("arguments", "parameters", "words"),
    [
        (("metrc", 3, 0), {}, ["'metrc'", "'metric'"]),
        (("zzz", 3, 0), {}, ["'zzz'", "uniform", "tie"]),
        (("uniform", 0, 0), {}, ["n=0", "1 or more"]),
        (("uniform", 2.5, 0), {}, ["n=2.5"]),
        (("uniform", 10**6, 0), {}, ["n=1000000", "7451 GiB", "32768"]),
        (("uniform", 3, -1), {}, ["seed=-1"]),
        (("uniform", 3, 2**64), {}, [f"seed={2**64}"]),
        (("uniform", 3, 0), {"density": 0.5}, ["'density'", "none"]),
        (("sparse", 3, 0), {"density": 1.5}, ["density=1.5", "to 1"]),
        (("sparse", 3, 0), {"density": float("nan")}, ["density=nan"]),
        (("low_rank", 3, 0), {"rank": 2.5}, ["rank=2.5", "whole number"]),
    ],
)
def test_wrong_arguments_are_named_with_the_fix(
    arguments: tuple[str, int, int], parameters: dict[str, float], words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        generate(*arguments, **parameters)
    for word in words:
        assert word in str(error.value)


def test_normal_numbers_have_the_moments_of_a_normal_distribution() -> None:
    values = Draws("test", 1).normal(500, 400)
    assert values.shape == (500, 400)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1.0) < 0.01
    assert abs((values**3).mean()) < 0.03
    assert abs((values**4).mean() - 2.9) < 0.05
    assert np.array_equal(Draws("test", 1).normal(200_000), values.ravel())


@given(seed=st.integers(0, 2**63), indices=st.sets(st.integers(0, 10_000), min_size=2, max_size=20))
def test_derived_seeds_differ_between_instances_and_collections(seed: int, indices: set[int]) -> None:
    seeds = [derived_seed(base, index) for base in (seed, seed + 1) for index in indices]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= value < 2**63 for value in seeds)
