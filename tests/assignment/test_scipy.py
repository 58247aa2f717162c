"""`linear_sum_assignment` takes the place of scipy's: each behaviour of docs/scipy.md is compared with scipy's own."""

import inspect
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import torch
from scipy.sparse import csr_array

from kdgat.assignment import CostError, InfeasibleError, linear_sum_assignment
from kdgat.assignment.errors import CostTypeError

INF, NAN, LARGEST = np.inf, np.nan, np.finfo(np.float64).max


def total(cost: Any, answer: tuple[Any, Any]) -> float:
    return float(np.asarray(cost, np.float64)[answer].sum())


def assert_same(cost: Any, *words: Any, **named: Any) -> None:
    """Compare with scipy: types, shapes, order and the total; where totals tie, other pairs may be chosen."""
    known = scipy.optimize.linear_sum_assignment(cost, *words, **named)
    found = linear_sum_assignment(cost, *words, **named)
    assert isinstance(found, tuple)
    for ours, theirs in zip(found, known, strict=True):
        assert (type(ours), ours.dtype, ours.shape) == (type(theirs), theirs.dtype, theirs.shape)
        assert ours.flags.writeable == theirs.flags.writeable
    assert found[0].tolist() == sorted(set(found[0].tolist()))
    assert len(set(found[1].tolist())) == found[1].size
    assert total(cost, found) == pytest.approx(total(cost, known), rel=1e-12)


SMALL = [
    [[7, 2, 9], [6, 4, 3], [5, 8, 1]],
    [[7, 2, 9, 0], [6, 4, 3, 3], [5, 8, 1, -7]],
    [[1.5, -2.5], [0.25, 8.0], [-1.0, 3.0]],
    [[5]],
    [[3, 1, 2]],
    [[3], [1], [2]],
    [[0, 0, 0], [0, 0, 0]],
]


@pytest.mark.parametrize("cost", SMALL)
@pytest.mark.parametrize("maximize", [False, True])
def test_small_matrices_as_lists_arrays_and_transposed(cost: list[list[float]], maximize: bool) -> None:
    for given in (cost, tuple(map(tuple, cost)), np.array(cost), np.array(cost, float).T, -np.array(cost)):
        assert_same(given, maximize)
        assert_same(given, maximize=maximize)
    assert linear_sum_assignment(cost_matrix=cost, maximize=maximize)[0].size == min(np.shape(cost))


def test_names_and_defaults_are_those_that_scipy_documents() -> None:
    parameters = inspect.signature(linear_sum_assignment).parameters
    assert [(name, one.default) for name, one in parameters.items()] == [
        ("cost_matrix", inspect.Parameter.empty),
        ("maximize", False),
    ]
    for function in (scipy.optimize.linear_sum_assignment, linear_sum_assignment):
        with pytest.raises(TypeError):
            function()
        with pytest.raises(TypeError):
            function([[1]], minimize=True)


@pytest.mark.parametrize("maximize", [0, 1, None, "", "yes", np.True_, np.False_, []])
def test_maximize_may_be_anything_that_is_true_or_false(maximize: Any) -> None:
    assert_same([[1, 2], [2, 1]], maximize)


@pytest.mark.parametrize("shape", [(0, 0), (0, 2), (3, 0), (1, 0)])
def test_an_empty_matrix_has_an_empty_matching(shape: tuple[int, int]) -> None:
    assert_same(np.empty(shape))
    assert_same(np.empty(shape), True)


@pytest.mark.parametrize("size", [1, 2, 15, 17, 100, 401])
def test_constant_matrices_have_the_identity(size: int) -> None:
    for value in (0.0, -3.5):
        known = scipy.optimize.linear_sum_assignment(np.full((size, size), value))
        found = linear_sum_assignment(np.full((size, size), value))
        assert [part.tolist() for part in found] == [part.tolist() for part in known]


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "H", "i", "I", "q", "Q", "e", "f", "d", ">f8", ">i4"])
def test_real_types_of_up_to_64_bits(dtype: str) -> None:
    cost = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 99, (12, 15)).astype(dtype)
    assert_same(cost)
    assert_same(cost, True)


VIEWS: list[Callable[[np.ndarray], Any]] = [
    np.asfortranarray,
    lambda cost: cost[::2, ::-1],
    lambda cost: np.broadcast_to(cost[0], (5, 12)),
    lambda cost: np.frombuffer(b"x" + cost.tobytes(), np.float64, cost.size, 1).reshape(cost.shape),
    np.asmatrix,
    pd.DataFrame,
    torch.tensor,
    lambda cost: cost.tolist(),
    lambda cost: list(cost),
]


@pytest.mark.parametrize("view", VIEWS)
def test_array_likes_in_every_layout_and_untouched(view: Callable[[np.ndarray], Any]) -> None:
    cost = np.random.default_rng(1).random((8, 12))
    given, before = view(cost), cost.copy()
    assert_same(given)
    assert np.array_equal(cost, before)
    cost.flags.writeable = False
    assert_same(cost)


@pytest.mark.parametrize(
    "cost",
    [
        [[Decimal(1), Decimal(5)], [Decimal(2), Decimal("3.5")]],
        [[Fraction(1, 3), 1], [1, 2]],
        [["1", "2.5"], ["3", " 4 "]],
        [[2**70, 1], [1, 2]],
        [[True, 2], [3.5, 1]],
        [["inf", 1], ["1", "2"]],
    ],
)
def test_lists_of_other_numbers(cost: list[list[Any]]) -> None:
    assert_same(cost)


@pytest.mark.parametrize(
    ("cost", "maximize"),
    [
        ([[INF, 1], [2, 3]], False),
        ([[-INF, 1], [2, 3]], True),
        ([[INF, INF, 1], [INF, 2, INF], [3, INF, INF]], False),
        ([[INF, 1, INF], [INF, 5, 2]], False),
        ([[LARGEST, 2], [3, 4]], False),
        ([[LARGEST, 2], [3, 4]], True),
        ([[-LARGEST, 2], [3, 4]], False),
        ([[1e300, 2.0], [3.0, 1e300], [1e300, 1e300]], False),
        ([[1e-310, 2e-310], [3e-310, 1e-310]], False),
    ],
)
def test_infinity_forbids_and_the_largest_number_is_one(cost: list[list[float]], maximize: bool) -> None:
    assert_same(cost, maximize)


def test_largest_numbers_for_forbidden_pairs_of_a_larger_matrix() -> None:
    cost = np.random.default_rng(2).random((40, 40))
    assert_same(np.where(cost < 0.6, cost, LARGEST))
    assert_same(np.where(cost < 0.6, cost, -LARGEST), True)


@pytest.mark.parametrize(
    ("cost", "maximize", "kind", "words"),
    [
        ([1, 2, 3], False, CostError, r"expected a matrix \(2-D array\), got a 1 array"),
        (np.zeros((2, 2, 2)), False, CostError, r"expected a matrix \(2-D array\), got a 3 array"),
        (3, False, CostError, r"expected a matrix \(2-D array\), got a 0 array"),
        (None, False, CostError, r"expected a matrix \(2-D array\), got a 0 array"),
        ([], False, CostError, r"expected a matrix \(2-D array\), got a 1 array"),
        ([[NAN, 1], [2, 3]], False, CostError, "matrix contains invalid numeric entries"),
        ([[-INF, 1], [2, 3]], False, CostError, "matrix contains invalid numeric entries"),
        ([[INF, 1], [2, 3]], True, CostError, "matrix contains invalid numeric entries"),
        ([[None, 1], [2, 3]], False, CostError, "matrix contains invalid numeric entries"),
        ([[INF, INF], [2, 3]], False, InfeasibleError, "cost matrix is infeasible"),
        ([[INF, 2], [INF, 3]], False, InfeasibleError, "cost matrix is infeasible"),
        ([[-INF, 2], [-INF, 3]], True, InfeasibleError, "cost matrix is infeasible"),
        ([["a", "b"], ["c", "d"]], False, CostError, "could not convert string to float"),
        ([[1, 2], [3]], False, CostError, "setting an array element with a sequence"),
        (np.identity(3).astype(str), False, CostTypeError, "Cannot cast array data from dtype"),
        (np.array([[1, 2], [3, 4]], object), False, CostTypeError, r"Cannot cast array data from dtype\('O'\)"),
        (1j * np.eye(2), False, CostTypeError, r"Cannot cast array data from dtype\('complex128'\)"),
        (np.eye(2, dtype=np.longdouble), False, CostTypeError, "Cannot cast array data from dtype"),
        (np.zeros((2, 2), "M8[s]"), False, CostTypeError, "Cannot cast array data from dtype"),
        ({1: 2}, False, CostTypeError, r"float\(\) argument must be a string or a real number, not 'dict'"),
        (csr_array(np.eye(3)), False, CostError, None),
    ],
)
def test_what_is_refused_has_the_type_and_the_words_of_scipy(
    cost: Any, maximize: bool, kind: type[Exception], words: str | None
) -> None:
    base = TypeError if kind is CostTypeError else ValueError
    with pytest.raises(base, match=words):
        scipy.optimize.linear_sum_assignment(cost, maximize)
    with pytest.raises(kind, match=words) as caught:
        linear_sum_assignment(cost, maximize)
    assert isinstance(caught.value, base)


def test_truth_values_without_one_are_refused_as_by_scipy() -> None:
    for function in (scipy.optimize.linear_sum_assignment, linear_sum_assignment):
        with pytest.raises(ValueError, match="truth value of an array"):
            function([[1, 2], [2, 1]], np.array([True, False]))


def test_masks_of_masked_arrays_are_honoured_which_scipy_does_not() -> None:
    cost = np.ma.masked_array([[1, 9], [2, 9.5]], mask=[[1, 0], [0, 0]])
    assert scipy.optimize.linear_sum_assignment(cost)[1].tolist() == [0, 1]
    assert linear_sum_assignment(cost)[1].tolist() == [1, 0]


def test_a_whole_number_beyond_float64_is_a_value_error_here() -> None:
    with pytest.raises(OverflowError):
        scipy.optimize.linear_sum_assignment([[10**400, 1], [1, 2]])
    with pytest.raises(CostError, match="beyond 1e308"):
        linear_sum_assignment([[10**400, 1], [1, 2]])


@pytest.mark.parametrize("seed", range(12))
def test_random_matrices_of_all_kinds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(15):
        n, m = rng.integers(1, 60, 2)
        cost = [
            rng.random((n, m)),
            rng.integers(0, 9, (n, m)),
            np.outer(np.arange(n), np.arange(m)),
            np.minimum(rng.random((n, m)), 0.2),
            np.where(rng.random((n, m)) < 0.2, INF, rng.normal(size=(n, m))),
        ][rng.integers(0, 5)]
        try:
            scipy.optimize.linear_sum_assignment(cost)
        except ValueError:
            with pytest.raises(InfeasibleError):
                linear_sum_assignment(cost)
        else:
            assert_same(cost)
            assert_same(np.where(np.isinf(cost), -INF, cost), True)
