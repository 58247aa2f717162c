"""Solving again after changes: the answer of scipy, proved by the full certificate, and only what changed looked at."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment as scipy_assignment

from kdgat.assignment import CostError, InfeasibleError, Reoptimiser, certify, solve
from kdgat.assignment.reoptimiser import REUSED

EXAMPLE = np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])


class Mirror:
    """A Reoptimiser and the matrix that it should hold, +-inf where a pair is forbidden, both changed at random."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw the kind of costs, the direction, and a first matrix of any shape."""
        self.rng = rng
        self.kind, self.price = int(rng.integers(5)), 10.0 ** rng.integers(3, 14)
        self.maximize, self.density = bool(rng.random() < 0.3), rng.choice([0.0, 0.25, 0.6])
        n, m = rng.integers(2, 14, 2)
        cost, mask = self.block((n, n if rng.random() < 0.4 else m))
        self.cost = self.blocked(cost, mask)
        self.problem = Reoptimiser(cost, mask=mask, maximize=self.maximize)

    def block(self, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray | None]:
        """Draw costs: uniform, whole numbers, mostly one value, of many decades, or partly at a prohibitive price."""
        uniform = self.rng.random(shape)
        cost = [
            uniform,
            self.rng.integers(-3, 4, shape).astype(float),
            np.where(self.rng.random(shape) < 0.8, 1.0, uniform),
            uniform * 10.0 ** self.rng.integers(-4, 4, (shape[0], 1)),
            np.where(self.rng.random(shape) < 0.5, self.price, uniform),
        ][self.kind]
        return cost, self.rng.random(shape) < self.density if self.density else None

    def blocked(self, cost: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """Return costs with the infinity that forbids."""
        return cost.copy() if mask is None else np.where(mask, -np.inf if self.maximize else np.inf, cost)

    def change(self) -> None:
        """Do one operation of any kind."""
        n, m = self.cost.shape
        rows = self.rng.permutation(n)[: self.rng.integers(1, 3)]
        columns = self.rng.permutation(m)[: self.rng.integers(1, 3)]
        match self.rng.integers(7):
            case 0:
                cost, mask = self.block((rows.size, m))
                self.problem.replace_rows(rows, cost, mask)
                self.cost[rows] = self.blocked(cost, mask)
            case 1:
                cost, mask = self.block((n, columns.size))
                self.problem.replace_columns(columns, cost, mask)
                self.cost[:, columns] = self.blocked(cost, mask)
            case 2:
                cost, mask = self.block((2, m))
                self.problem.add(rows=cost, row_mask=mask)
                self.cost = np.vstack([self.cost, self.blocked(cost, mask)])
            case 3:
                cost, mask = self.block((n, 2))
                self.problem.add(columns=cost, column_mask=mask)
                self.cost = np.hstack([self.cost, self.blocked(cost, mask)])
            case 4 if n > 3 and m > 3:
                self.problem.remove(rows=rows, columns=columns)
                self.cost = np.delete(np.delete(self.cost, rows, 0), columns, 1)
            case 5:
                self.cost[rows] = self.blocked(*self.block((rows.size, m)))
                finite = np.isfinite(self.cost)
                self.problem.update(np.where(finite, self.cost, 0.0), ~finite)
            case 6 if self.rng.random() < 0.3:
                gone = [self.rng.permutation(size)[: self.rng.integers(size)] for size in (n, m)]
                self.problem.remove(rows=gone[0], columns=gone[1])
                self.cost = np.delete(np.delete(self.cost, gone[0], 0), gone[1], 1)

    def check(self) -> str:
        """Compare with scipy and certify; return the seed of the solve, or that there is no matching."""
        assert np.array_equal(self.problem.cost, self.cost)
        finite = np.isfinite(self.cost)
        try:
            rows, columns = scipy_assignment(self.cost, maximize=self.maximize)
        except ValueError:
            with pytest.raises(InfeasibleError):
                self.problem.solve()
            return "infeasible"
        found = self.problem.solve()
        paid = self.cost[rows, columns]
        assert found.cost == pytest.approx(paid.sum(), rel=1e-9, abs=1e-9 * np.abs(paid).sum() + 1e-15)
        # A sum of duals as large as a prohibitive price is exact to the price's own rounding, no better.
        rounding = paid.size * np.finfo(float).eps * np.abs(self.cost[finite]).max()
        assert found.seed_bound <= found.cost + 1e-9 * np.abs(paid).sum() + rounding or self.maximize
        certify(np.where(finite, self.cost, 0.0), found, mask=~finite, maximize=self.maximize)
        return found.counters.seed


def run_sequences(first: int, count: int) -> dict[str, int]:
    """Return how often each kind of solve occurred in sequences of ten solves, with up to two changes before each."""
    seeds: dict[str, int] = {}
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        mirror = Mirror(rng)
        for _ in range(10):
            for _ in range(rng.integers(0, 3)):
                mirror.change()
            seed = mirror.check()
            seeds[seed] = seeds.get(seed, 0) + 1
    return seeds


def test_any_sequence_of_changes_has_the_optimum_of_scipy_and_the_full_certificate() -> None:
    seeds = run_sequences(0, 120)
    assert seeds[REUSED] > 600
    assert seeds["infeasible"] > 20


@pytest.mark.parametrize("is_transposed", [False, True])
def test_all_lines_but_one_are_removed(is_transposed: bool) -> None:
    cost = np.array([[4.0, 1.0, 3.0, 2.0], [2.0, 0.0, 5.0, 3.0], [3.0, 2.0, 2.0, 1.0]])
    problem = Reoptimiser(cost.T if is_transposed else cost)
    problem.solve()
    problem.remove(**{"columns" if is_transposed else "rows": [1, 2]})
    found = problem.solve()
    assert (found.cost, (found.rows if is_transposed else found.columns).tolist()) == (1.0, [1])


@pytest.mark.nightly
def test_thousands_of_sequences_of_changes_have_the_optimum_of_scipy() -> None:
    assert run_sequences(1000, 5000)[REUSED] > 25_000


@pytest.mark.parametrize("shape", [(150, 150), (120, 150), (150, 120)])
def test_of_one_changed_line_little_is_looked_at(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    cost = np.hypot(*(rng.random((2, shape[0], 1)) - rng.random((2, 1, shape[1]))))
    problem = Reoptimiser(cost)
    first = problem.solve().counters
    for k in range(12):
        if k % 2:
            cost[:, k] = rng.random(shape[0])
            problem.replace_columns([k], cost[:, [k]])
        else:
            cost[k] = rng.random(shape[1])
            problem.replace_rows([k], cost[[k]])
        found = problem.solve()
        assert found.counters.seed == REUSED
        assert found.counters.augmentations <= 1
        assert found.counters.greedy_matches >= min(shape) - 1
        assert found.counters.scanned_columns < first.scanned_columns + cost.size
        assert found.cost == pytest.approx(solve(cost).cost, rel=1e-12)
        certify(cost, found)


@pytest.mark.parametrize("shape", [(300, 300), (280, 300), (300, 280)])
def test_bids_match_rows_that_no_search_is_needed_for(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    cost = rng.random(shape)
    problem = Reoptimiser(cost)
    problem.solve()
    spared = 0
    for _ in range(6):
        rows, columns = rng.permutation(shape[0])[:8], rng.permutation(shape[1])[:8]
        cost[rows] = rng.random((8, shape[1]))
        cost[:, columns] = rng.random((shape[0], 8))
        problem.replace_rows(rows, cost[rows])
        problem.replace_columns(columns, cost[:, columns])
        found = problem.solve()
        assert found.counters.seed == REUSED
        assert found.cost == pytest.approx(solve(cost).cost, rel=1e-12)
        certify(cost, found)
        spared += min(shape) - found.counters.greedy_matches - found.counters.augmentations
    assert spared >= 6


def test_lines_are_counted_as_in_a_matrix_of_which_they_are_deleted() -> None:
    rng = np.random.default_rng(0)
    cost = rng.random((40, 40))
    problem = Reoptimiser(cost)
    while cost.shape[0] > 3:
        gone = rng.permutation(cost.shape[0])[:2]
        problem.remove(rows=gone, columns=gone[:1])
        cost = np.delete(np.delete(cost, gone, 0), gone[:1], 1)
        assert problem.shape == cost.shape
        certify(cost, problem.solve())
    assert problem.solve().counters.seed == REUSED


def test_an_unchanged_problem_is_not_solved_again_and_its_costs_are_a_copy() -> None:
    cost = EXAMPLE.copy()
    problem = Reoptimiser(cost)
    found = problem.solve()
    cost[:] = 0.0
    assert problem.solve() is found
    problem.update(EXAMPLE)
    assert problem.solve().columns.tolist() == [1, 0, 2]


def test_a_problem_without_a_matching_is_named_and_may_be_mended() -> None:
    problem = Reoptimiser(EXAMPLE)
    problem.solve()
    problem.replace_rows([0], EXAMPLE[:1], np.array([[True, True, True]]))
    for _ in range(2):
        with pytest.raises(InfeasibleError, match="at most 2 can be matched"):
            problem.solve()
    problem.replace_rows([0], EXAMPLE[:1])
    assert problem.solve().cost == 5.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.replace_rows([3], [[1.0, 2.0, 3.0]]), r"row 3: there are 3 rows, from 0"),
        (lambda p: p.replace_rows([1, 1], [[1.0, 2.0, 3.0]] * 2), r"row 1 is named twice"),
        (lambda p: p.replace_rows([0.5], [[1.0, 2.0, 3.0]]), r"rows have .* whole numbers"),
        (lambda p: p.replace_rows([0], [[1.0, 2.0]]), r"cost has shape \(1, 2\): \[1, 3\] is needed"),
        (lambda p: p.replace_columns([2], [[1.0], [np.nan], [0.0]]), r"cost\[1, 0\] is nan"),
        (lambda p: p.add(rows=[1.0, 2.0, 3.0]), r"cost has shape \(3,\)"),
        (lambda p: p.remove(rows=[0, 1, 2]), "a line of each kind has to be left"),
        (lambda p: p.update(np.ones((2, 3))), r"cost has shape \(2, 3\)"),
        (lambda p: p.update(np.ones((3, 3)), np.zeros((3, 3))), "mask has dtype float64"),
    ],
)
def test_changes_that_cannot_be_made_are_named_and_change_nothing(change, words: str) -> None:
    problem = Reoptimiser(EXAMPLE)
    with pytest.raises(CostError, match=words):
        change(problem)
    assert problem.solve().cost == 5.0


def test_a_row_with_one_allowed_column_among_costs_of_zero_is_reused() -> None:
    """Its second best is beyond all, and no bid may be."""
    problem = Reoptimiser(np.zeros((40, 40)))
    problem.solve()
    mask = np.ones((1, 40), bool)
    mask[0, 7] = False
    problem.replace_rows([3], np.zeros((1, 40)), mask)
    found = problem.solve()
    assert found.cost == 0.0
    assert found.columns[3] == 7
    assert found.counters.seed == "reused"
