"""Order statistics are those of sorting, whatever the values are."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kdgat.canbus.features.intervals import ordered


@settings(deadline=None, max_examples=200)
@given(
    arrays(np.float32, st.integers(1, 1024), elements=st.floats(2.0**-20, 2.0**20, width=32)),
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
)
@example(np.full(30, 0.1, np.float32), [0.0, 0.5, 1.0])
def test_values_are_those_of_sorting(values: np.ndarray, shares: list[float]) -> None:
    before = values.copy()
    low, middle, high = sorted(int(share * (len(values) - 1)) for share in shares)
    assert ordered(values, low, middle, high) == tuple(np.sort(values)[[low, middle, high]].astype(float))
    np.testing.assert_array_equal(values, before)
