"""Logarithms are those of the mathematics library, but for the last place, and the same wherever a number stands."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from kdgat.canbus.features.logarithms import log2, quarter_octaves


@njit
def _log2(values: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    for place in range(len(values)):
        out[place] = log2(values[place])


@njit
def _quarter_octaves(value: float) -> int:
    return quarter_octaves(value)


def _logarithms(values: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.empty_like(values)
    _log2(values, out)
    return out


@given(st.lists(st.floats(2.0**-1000, 2.0**1000) | st.floats(0.9, 1.1), min_size=1, max_size=20))
def test_logarithms_are_those_of_the_library(values: list[float]) -> None:
    found = _logarithms(np.array(values))
    np.testing.assert_allclose(found, [math.log2(value) for value in values], rtol=5e-16, atol=0.0)


@given(st.lists(st.floats(2.0**-30, 2.0**30), min_size=16, max_size=16))
def test_a_number_has_the_same_logarithm_alone_and_among_others(values: list[float]) -> None:
    together = _logarithms(np.array(values))
    alone = [float(_logarithms(np.array([value]))[0]) for value in values]
    assert together.tolist() == alone


def test_logarithms_of_powers_of_two_are_exact() -> None:
    powers = np.arange(-1000.0, 1000.0)
    assert _logarithms(np.exp2(powers)).tolist() == powers.tolist()


@pytest.mark.parametrize("quarter", range(-80, 80))
def test_quarter_octaves_begin_at_their_powers(quarter: int) -> None:
    border = 2.0 ** (quarter / 4)
    assert _quarter_octaves(border * (1 + 1e-15)) == quarter
    assert _quarter_octaves(border * (1 - 1e-15)) == quarter - 1
