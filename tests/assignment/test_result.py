"""What a solved problem says of itself, and what one without a solution says."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

from kdgat.assignment import Assignment, InfeasibleError, solve


def test_an_assignment_is_shown_in_one_line_however_large_it_is() -> None:
    text = repr(solve(np.random.default_rng(0).random((200, 300))))
    assert text.startswith("Assignment(cost=")
    assert text.endswith("200 pairs of 200 rows and 300 columns)")
    assert len(text) < 120


@pytest.mark.parametrize(
    ("forbidden", "words"),
    [
        ([(1, 0), (1, 1), (1, 2)], "row 1 is allowed no column at all; allow more"),
        ([(0, 1), (0, 2), (1, 1), (1, 2)], r"rows \[0, 1\] are allowed only column 0, and 2 need 2 different columns"),
    ],
)
def test_a_problem_without_a_matching_names_the_rows_that_compete(forbidden: list[tuple[int, int]], words: str) -> None:
    mask = np.zeros((3, 3), bool)
    for place in forbidden:
        mask[place] = True
    with pytest.raises(InfeasibleError, match=words):
        solve(np.ones((3, 3)), mask=mask)


def test_answer_of_the_compiled_way_is_copied_pickled_and_replaced_like_any_other() -> None:
    found = solve(np.random.default_rng(0).random((5, 7)))
    fields = [field.name for field in dataclasses.fields(Assignment)]
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found), dataclasses.replace(found)):
        assert isinstance(other, Assignment)
        for name in fields:
            assert np.array_equal(getattr(other, name), getattr(found, name)), name
    with pytest.raises(AttributeError, match="no attribute 'colums'"):
        _ = found.colums  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.cost = 0.0  # type: ignore[misc]
