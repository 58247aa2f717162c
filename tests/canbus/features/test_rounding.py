"""Features are those that a store keeps, wherever they are seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from kdgat.base import UserError
from kdgat.canbus.features.graphs import round_features


@given(
    st_numpy.arrays(np.float32, (3, 2), elements=st.floats(-65_519, 65_519, width=32))
    | st_numpy.arrays(np.float32, (3, 2), elements=st.floats(-(2.0**-13), 2.0**-13, width=32))
)
def test_rounding_is_to_the_nearest_float16(rows: np.ndarray) -> None:
    expected = rows.astype(np.float16).astype(np.float32) + np.float32(0.0)  # without -0
    round_features(rows, ("first", "second"))
    np.testing.assert_array_equal(rows.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 65_520.0, -1e9])
def test_what_no_store_can_keep_is_refused_by_its_name(value: float) -> None:
    with pytest.raises(UserError, match=r"feature second is .* beyond what a store keeps"):
        round_features(np.array([[1.0, 2.0], [3.0, value]], np.float32), ("first", "second"))
