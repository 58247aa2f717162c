"""Progress that another process writes is shown as far as it makes sense, and ends nothing where it makes none."""

import math
from typing import Any

import pytest

from kdgat.run.progress import describe_progress, fraction_done


@pytest.mark.parametrize("odd", [None, "", "x", [], {}, math.nan, math.inf, -math.inf, 10**400, -1, True])
@pytest.mark.parametrize(
    "key", ["epoch", "max_epochs", "step", "num_steps", "done", "total", "loss", "seconds_to_deadline"]
)
def test_values_of_other_kinds_are_left_out(key: str, odd: Any) -> None:
    whole = {"epoch": 1, "max_epochs": 3, "step": 2, "num_steps": 4, "loss": 0.5, "seconds_to_deadline": 9.0}
    for progress in ({**whole, key: odd}, {"done": 3, "total": 9, key: odd}):
        assert 0.0 <= fraction_done(progress) <= 1.0
        describe_progress(progress)
