"""Errors leave a process with what they hold, as a pool of processes and Dask need it."""

import copy
import pickle
from pathlib import Path

import pytest

from kdgat.assignment import InfeasibleError, solve_batch
from kdgat.canbus import RecordingError
from kdgat.trees.reading import ReadError


@pytest.mark.parametrize(
    "error",
    [
        InfeasibleError("cost matrix is infeasible", 1, [0, 1], [2]),
        RecordingError(Path("a.log"), "is empty"),
        ReadError("a.swc", "no number", 3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_after_it_was_pickled(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_a_batch_with_infeasible_problems_is_pickled() -> None:
    batch = solve_batch([[[1.0]], [[2.0]]], mask=[[[True]], [[False]]], keep_infeasible=True)
    assert str(pickle.loads(pickle.dumps(batch)).failed[0]) == str(batch.failed[0])
