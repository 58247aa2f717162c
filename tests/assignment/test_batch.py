"""Many small problems at once: padded, in a list, over threads, with what cannot be solved named by its number."""

import numpy as np
import pytest

from kdgat.assignment import CostError, InfeasibleError, certify, solve, solve_batch


def problems(number: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.random(rng.integers(1, 25, 2)) for _ in range(number)]


def test_list_and_padded_array_have_the_answers_of_solve() -> None:
    matrices = problems(150)
    n, m = np.max([cost.shape for cost in matrices], axis=0)
    padded = np.full((len(matrices), n, m), np.nan)
    for k, cost in enumerate(matrices):
        padded[k, : cost.shape[0], : cost.shape[1]] = cost
    sizes = [cost.shape for cost in matrices]
    for batch in (solve_batch(matrices, threads=2), solve_batch(padded, sizes=sizes, threads=1)):
        assert len(batch) == len(matrices)
        for k, cost in enumerate(matrices):
            alone, found = solve(cost), batch[k]
            assert found.cost == batch.cost[k] == alone.cost
            for name in ("rows", "columns", "u", "v"):
                assert (getattr(found, name) == getattr(alone, name)).all()
            assert found.counters == alone.counters
            assert (batch.columns[k, cost.shape[0] :] == -1).all()


def test_masks_and_maxima() -> None:
    matrices = problems(60)
    rng = np.random.default_rng(1)
    masks = [None if k % 3 == 0 else rng.random(cost.shape) < 0.1 for k, cost in enumerate(matrices)]
    for mask in masks:
        if mask is not None:
            np.fill_diagonal(mask, False)
    batch = solve_batch(matrices, mask=masks, maximize=True)
    for k, (cost, mask) in enumerate(zip(matrices, masks, strict=True)):
        assert batch.cost[k] == pytest.approx(solve(cost, mask=mask, maximize=True).cost, rel=1e-12)


def test_large_problem_and_one_that_needs_care_are_solved_among_small_ones() -> None:
    matrices = [*problems(5), np.random.default_rng(2).random((160, 170)), np.array([[1e-20, 1.0], [1.0, 1e12]])]
    batch = solve_batch(matrices)
    assert batch.cost[-2] == pytest.approx(solve(matrices[-2]).cost)
    assert batch.cost[-1] == 2.0


def test_no_problem_at_all_is_an_empty_batch() -> None:
    assert len(solve_batch([])) == len(solve_batch(np.zeros((0, 3, 4)))) == 0


def test_problems_that_cannot_be_solved_are_named() -> None:
    blocked = np.ones((2, 2), bool)
    with pytest.raises(CostError, match=r"problem 1: cost\[0, 0\] is nan"):
        solve_batch([np.eye(2), np.array([[np.nan]])])
    with pytest.raises(InfeasibleError, match="problem 0: cost matrix is infeasible: no matching") as caught:
        solve_batch([np.eye(2)], mask=[blocked])
    assert caught.value.matched == 0
    with pytest.raises(CostError, match=r"sizes\[1\] is \[4, 1\]: from \[0, 0\] to \[3, 3\]"):
        solve_batch(np.zeros((2, 3, 3)), sizes=[[1, 2], [4, 1]])
    for costs, options in (
        (np.zeros((2, 2)), {}),
        ([np.zeros(3)], {}),
        ([np.zeros((2, 2))], {"sizes": [[2, 2]]}),
        ([np.zeros((2, 2))], {"mask": []}),
        (np.zeros((2, 3, 3)), {"sizes": [1, 2]}),
    ):
        with pytest.raises(CostError):
            solve_batch(costs, **options)


def test_a_frame_without_rows_or_columns_has_an_empty_answer() -> None:
    frames = [np.array([[4.0, 1.0], [2.0, 0.0]]), np.zeros((0, 3)), np.zeros((2, 0)), np.array([[7.0]])]
    batch = solve_batch(frames)
    assert batch.cost.tolist() == [3.0, 0.0, 0.0, 7.0]
    assert batch.columns.tolist() == [[1, 0], [-1, -1], [-1, -1], [0, -1]]
    for k, frame in enumerate(frames):
        certify(frame, batch[k])
    sizes = np.array([[2, 2], [0, 2], [1, 0]])
    padded = solve_batch(np.tile(frames[0], (3, 1, 1)), sizes=sizes)
    assert padded.cost.tolist() == [3.0, 0.0, 0.0]
    assert (padded[1].u.size, padded[1].v.size) == (0, 2)
    assert len(solve_batch(np.zeros((3, 0, 4)))) == 3


def test_an_infeasible_frame_leaves_the_others_their_answers() -> None:
    frames = [np.ones((2, 2)), np.ones((3, 2)), np.array([[1.0, 2.0], [3.0, 5.0]])]
    masks = [np.array([[1, 1], [0, 0]], bool), None, None]
    with pytest.raises(InfeasibleError, match="problem 0: "):
        solve_batch(frames, mask=masks)
    batch = solve_batch(frames, mask=masks, keep_infeasible=True)
    assert list(batch.failed) == [0]
    assert batch.failed[0].rows == [0]
    assert np.isnan(batch.cost[0])
    assert batch.columns[0].tolist() == [-1, -1, -1]
    assert batch.cost[1:].tolist() == [2.0, 5.0]
    assert batch[-1].columns.tolist() == [1, 0]
    with pytest.raises(InfeasibleError, match="problem 0: "):
        batch[0]


def test_masks_of_masked_arrays_count_in_a_batch() -> None:
    frame = np.ma.masked_array([[1, 9], [2, 9.5]], mask=[[1, 0], [0, 0]])
    assert solve_batch([frame, frame.data]).columns.tolist() == [[1, 0], [0, 1]]
    assert solve_batch(np.ma.stack([frame, frame])).columns.tolist() == [[1, 0], [1, 0]]


def test_what_is_wrong_with_a_frame_is_said_with_its_number() -> None:
    for wrong, kind, words in (
        (np.zeros(3), CostError, r"expected a matrix \(2-D array\)"),
        (np.eye(2) * 1j, TypeError, "Cannot cast"),
        ([[1, 2], [3]], CostError, "no matrix"),
    ):
        with pytest.raises(kind, match=f"problem 1: .*{words}"):
            solve_batch([np.eye(2), wrong])
