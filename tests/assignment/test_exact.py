"""The solver against scipy's, its proof, its seeds and what it says about input that cannot be used."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment as scipy_assignment

from kdgat.assignment import CostError, InfeasibleError, Reoptimiser, certify, linear_sum_assignment, solve
from kdgat.assignment.matrix import make_matrix
from kdgat.lap.instances.distributions import generate

METHODS = ("core", "dense")
EXAMPLE = np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]])


def random_cost(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """Return a matrix of a random kind: uniform, integer, tied, huge, tiny, negative, Machol-Wien, rank one."""
    kind = rng.integers(8)
    uniform = rng.random((n, m))
    rows, columns = np.arange(1.0, n + 1), np.arange(1.0, m + 1)
    return [
        uniform,
        rng.integers(-1000, 1000, (n, m)).astype(float),
        rng.integers(0, 4, (n, m)),
        uniform * 1e12 - 3e11,
        uniform * 1e-9,
        -uniform,
        np.outer(rows, columns),
        np.outer(rng.normal(size=n), rng.normal(size=m)),
    ][kind]


def feasible_mask(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """Forbid a random part of the entries, but not one random matching."""
    mask = rng.random((n, m)) < rng.random()
    size = min(n, m)
    mask[rng.permutation(n)[:size], rng.permutation(m)[:size]] = False
    return mask


def adversarial_seed(rng: np.random.Generator, size: int, scale: float) -> np.ndarray | None:
    """Return a seed that knows nothing: none, noise, huge, tiny, constant, or one huge spike."""
    noise = rng.normal(size=size)
    spike = np.zeros(size)
    spike[rng.integers(size)] = 1e9 * scale
    return [None, noise * scale, noise * 1e6 * scale, noise * 1e-12 * scale, np.full(size, 7.0), spike][rng.integers(6)]


def check(cost: np.ndarray, mask: np.ndarray | None, maximize: bool, method: str, u=None, v=None) -> None:
    """Compare one solve with scipy and check the duals from outside."""
    found = solve(cost, u, v, mask=mask, maximize=maximize, method=method)
    blocked = cost if mask is None else np.where(mask, -np.inf if maximize else np.inf, cost)
    rows, columns = scipy_assignment(blocked, maximize=maximize)
    values = np.asarray(cost, float)
    scale = max(np.abs(values).max(), np.abs(found.u).max(), np.abs(found.v).max())
    assert found.cost == pytest.approx(values[rows, columns].sum(), rel=1e-12, abs=1e-12 * scale * rows.size)
    assert sorted(set(found.rows)) == list(found.rows)
    assert len(set(found.columns)) == found.columns.size == min(cost.shape)
    assert mask is None or not mask[found.rows, found.columns].any()
    slack = (values - found.u[:, None] - found.v) * (-1 if maximize else 1)
    assert (slack if mask is None else slack[~mask]).min() >= -1e-9 * scale
    assert found.gap <= 1e-9 * scale * rows.size
    if cost.dtype.kind == "i":
        assert found.cost == values[rows, columns].sum()


@pytest.mark.parametrize("method", METHODS)
def test_random_matrices_agree_with_scipy(method: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(400):
        n, m = rng.integers(1, 40, 2)
        m = n if rng.random() < 0.5 else m
        cost = random_cost(rng, n, m)
        mask = feasible_mask(rng, n, m) if rng.random() < 0.4 else None
        scale = float(np.abs(cost).max())
        u, v = adversarial_seed(rng, n, scale), adversarial_seed(rng, m, scale)
        check(cost, mask, bool(rng.random() < 0.3), method, u, v)


def tied_costs(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Return costs of which most rows' cheapest entries are many, and the searches that are enough for them."""
    rare = rng.random((n, n)) < 2.0 / n
    return {
        "constant": np.ones((n, n)),
        "marks": rng.integers(1, 11, (n, n)).astype(float),
        "forbidden by price": np.where(rare, rng.random((n, n)), 1e6),
        "largest matching": -rare.astype(float),
        "smallest overlap": rare.astype(float),
        "columns alike": np.repeat(rng.random((n, 1)), n, 1),
        "rows alike": np.repeat(rng.random((1, n)), n, 0),
        "fewer rows": rng.integers(1, 4, (n - 20, n)).astype(float),
    }


def test_ties_agree_with_scipy_and_need_little_search() -> None:
    rng = np.random.default_rng(11)
    for n in (60, 550):
        for name, cost in tied_costs(rng, n).items():
            check(cost, None, False, "core")
            check(cost.T, None, True, "dense")
            check(cost, feasible_mask(rng, *cost.shape), False, "core", u=cost.min(1))
            for matrix in (cost, cost.T):
                counters = solve(matrix).counters
                assert counters.scanned_columns <= (8 if n == 60 else 5) * matrix.size, name
                assert n == 60 or counters.core_edges == 0, name  # short lists would be blind


@pytest.mark.parametrize("method", METHODS)
def test_worked_example_has_its_duals(method: str) -> None:
    found = solve(EXAMPLE, np.array([1.0, 0.0, 1.0]), method=method)
    assert found.cost == found.dual_bound == found.seed_bound == 5.0
    assert found.columns.tolist() == [1, 0, 2]
    assert found.counters.seed == "prediction"


@pytest.mark.parametrize("method", METHODS)
def test_oracle_seed_needs_no_search_and_is_not_thrown_away(method: str) -> None:
    cost = np.random.default_rng(0).random((200, 200))
    cold = solve(cost, method=method)
    warm = solve(cost, cold.u, method=method)
    assert warm.counters.seed == "prediction"
    assert warm.cost == pytest.approx(cold.cost, rel=1e-12)
    assert warm.seed_bound == pytest.approx(cold.cost, rel=1e-12)
    near = solve(cost, cold.u + 1e-3 * cold.u.std() * np.random.default_rng(1).normal(size=200), method=method)
    assert near.counters.seed == "prediction"
    assert near.counters.scanned_columns < cold.counters.scanned_columns


@pytest.mark.parametrize(("method", "shape"), [*product(METHODS, [(1, 1), (1, 7), (7, 1), (2, 9), (9, 2)])])
def test_slim_matrices(method: str, shape: tuple[int, int]) -> None:
    check(np.random.default_rng(3).normal(size=shape), None, False, method)


def test_seed_of_the_optimum_of_a_rectangle_is_kept() -> None:
    cost = np.random.default_rng(0).random((60, 90))
    for matrix in (cost, cost.T):
        cold = solve(matrix)
        seed = {"u": cold.u} if matrix is cost else {"v": cold.v}
        warm = solve(matrix, **seed)
        assert warm.counters.seed == "prediction"
        assert warm.seed_bound == pytest.approx(cold.cost, rel=1e-9)
        shifted = solve(matrix, **{name: values + 5.0 for name, values in seed.items()})
        assert shifted.seed_bound == pytest.approx(cold.cost, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_seeds_of_any_size_do_no_harm(method: str) -> None:
    rng = np.random.default_rng(0)
    cost = rng.random((50, 50))
    mask = feasible_mask(rng, 50, 50)
    for scale in (1e-300, 1e3, 1e16, 1e300, 1.7e308):
        for forbidden in (None, mask):
            check(cost, forbidden, False, method, u=scale * rng.choice([-1.0, 1.0, 0.3], 50))
            check(cost, forbidden, False, method, v=scale * rng.choice([-1.0, 1.0, 0.3], 50))


@pytest.mark.parametrize("method", METHODS)
def test_seed_of_huge_duals_that_cancel_is_no_good_seed(method: str) -> None:
    cost = np.array([[-5e287, 8e-30, 3e-264], [-2e-7, -4e-141, -4e99], [9e95, 4e-42, -4e-119]])
    for u in ([4.6e287, -7e284, -2.8e287], [3e287, 0.0, -3e287]):
        assert solve(cost, u, maximize=True, method=method).cost == 9e95
    assert solve(cost, v=[3e287, 0.0, -3e287], maximize=True, method=method).cost == 9e95


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", METHODS)
def test_costs_whose_sums_overflow_are_named_and_others_near_the_limit_are_solved(method: str) -> None:
    cost = np.full((4, 5), 1e305)
    cost[2, 3] = -1e308
    for matrix in (cost, cost.T, np.where(cost > 0, cost, -1.7e308)):
        found = solve(matrix, method=method)
        assert found.cost == pytest.approx(matrix.min() + 3e305, rel=1e-12)
        assert found.gap <= 1e-9 * abs(found.cost)
        certify(matrix, found)
    rest = np.arange(20).reshape(4, 5) == 13
    assert solve(cost, mask=rest, method=method).cost == pytest.approx(4e305)
    for matrix, name in ((np.full((4, 5), 1e308), r"cost\[0, 0\]"), (-np.full((5, 4), 1e308), r"cost\[0, 0\]")):
        with pytest.raises(CostError, match=rf"{name} is -?1e\+308: sums .* scale the matrix"):
            solve(matrix, method=method)
    with pytest.raises(CostError, match="scale the matrix"):
        solve([[10**400, 1], [1, 1]], method=method)


def prohibitive(rng: np.random.Generator, price: float) -> tuple[np.ndarray, float]:
    """Return costs up to 1 with most pairs at a prohibitive price that no optimum pays, and scipy's optimum."""
    n = int(rng.integers(2, 30))
    cost = rng.random((n, n + int(rng.integers(0, 3))))
    blocked = np.where(feasible_mask(rng, *cost.shape), np.inf, cost)
    return np.where(np.isinf(blocked), price, blocked), float(blocked[scipy_assignment(blocked)].sum())


@pytest.mark.parametrize("price", [1e9, 1e15, 1e30, 1e100])
def test_prohibitive_prices_and_seeds_of_their_size_take_no_precision(price: float) -> None:
    rng = np.random.default_rng(7)
    for k in range(150):
        cost, optimum = prohibitive(rng, price)
        seeds = (
            None,
            cost.min(1) - price * rng.random(cost.shape[0]),
            price * rng.normal(size=cost.shape[0]),
            np.where(rng.random(cost.shape[0]) < 0.1, price * rng.normal(), cost.min(1)),
        )
        for u in seeds:
            found = solve(cost, u, method=METHODS[k % 2])
            assert found.cost == pytest.approx(optimum, rel=1e-12)
            assert abs(found.gap) <= 1e-9 * abs(optimum)


def test_integer_costs_are_solved_in_integers_from_any_seed() -> None:
    cost = np.random.default_rng(0).integers(-(2**40), 2**40, (60, 60)).astype(float)
    cold = solve(cost)
    warm = solve(cost, cold.u + np.random.default_rng(1).normal(size=60) * 2.0**20)
    assert warm.counters.seed == "prediction"
    assert warm.gap == 0.0
    assert (warm.u == np.rint(warm.u)).all()


def test_forbidden_entries_may_hold_anything() -> None:
    cost = EXAMPLE.copy()
    mask = np.zeros((3, 3), bool)
    mask[0, 1] = mask[1, 0] = True
    cost[0, 1], cost[1, 0] = np.nan, -np.inf
    found = solve(cost, mask=mask)
    assert found.cost == 6.0
    assert found.columns.tolist() in ([2, 1, 0], [0, 1, 2])


def test_input_is_not_changed_and_may_be_read_only() -> None:
    cost = np.asfortranarray(np.random.default_rng(0).random((20, 20)).astype(np.float32))
    cost.setflags(write=False)
    before = cost.copy()
    assert solve(cost).cost == pytest.approx(solve(cost.astype(float)).cost)
    assert (cost == before).all()


@pytest.mark.parametrize(
    ("cost", "options", "words"),
    [
        (np.zeros(3), {}, r"shape \(3,\)"),
        (np.zeros((0, 3)), {"mask": np.zeros((3, 0), bool)}, r"mask has shape \(3, 0\)"),
        (np.zeros((2, 2), complex), {}, "dtype complex128"),
        (np.array([["a"]]), {}, "dtype <U1"),
        ([[1.0, np.nan], [0.0, 0.0]], {}, r"cost\[0, 1\] is nan"),
        ([[1.0, 2.0], [np.inf, 0.0]], {}, r"cost\[1, 0\] is inf.*mask"),
        ([[1.0, 2.0], [3.0, 0.0], [0.0, -np.inf]], {}, r"cost\[2, 1\] is -inf"),
        ([[1.0, np.inf]], {"maximize": True}, r"cost\[0, 1\] is inf"),
        (EXAMPLE, {"mask": np.zeros((2, 3), bool)}, r"mask has shape \(2, 3\), cost has \(3, 3\)"),
        (EXAMPLE, {"mask": np.zeros((3, 3))}, "mask has dtype float64"),
        (EXAMPLE, {"u": [1.0, 2.0]}, r"u has shape \(2,\)"),
        (EXAMPLE, {"v": [1.0, 2.0, np.inf]}, r"v\[2\] is inf.*or NaN where unknown"),
        (EXAMPLE, {"method": "magic"}, "method is 'magic'"),
    ],
)
def test_input_that_cannot_be_used_is_named(cost, options: dict, words: str) -> None:
    with pytest.raises(CostError, match=words):
        solve(cost, **options)


@pytest.mark.parametrize("method", METHODS)
def test_infeasible_matrix_names_the_rows_that_compete(method: str) -> None:
    mask = np.zeros((6, 6), bool)
    mask[[1, 3, 4]] = True
    mask[[1, 3, 4], [2, 2, 5]] = False
    with pytest.raises(InfeasibleError, match="at most 5 can be matched") as caught:
        solve(np.ones((6, 6)), mask=mask, method=method)
    assert (caught.value.matched, caught.value.rows, caught.value.columns) == (5, [1, 3], [2])
    mask = np.vstack([mask, mask[:1]]).T
    with pytest.raises(InfeasibleError, match="columns") as caught:
        solve(np.ones((7, 6)), mask=np.vstack([mask[:, :6].T, np.ones((1, 6), bool)]), method=method)
    assert caught.value.matched == 5


@pytest.mark.parametrize("method", METHODS)
def test_line_without_an_allowed_entry_is_infeasible(method: str) -> None:
    mask = np.zeros((3, 3), bool)
    mask[:, 1] = True
    with pytest.raises(InfeasibleError, match="at most 2"):
        solve(EXAMPLE, mask=mask, method=method)
    assert solve(EXAMPLE[:2], mask=mask[:2], method=method).cost == 5.0


@pytest.mark.parametrize(
    "bad", [np.ones((2, 2), complex), np.ones((2, 2), object), np.array([["a"]]), np.ones((2, 2), "m8[s]")]
)
def test_types_without_order_are_type_errors_as_in_scipy(bad) -> None:
    with pytest.raises(TypeError, match="dtype"):
        linear_sum_assignment(bad)
    with pytest.raises(CostError, match="dtype"):
        solve(bad)


def test_the_wrong_infinity_says_what_to_do() -> None:
    with pytest.raises(CostError, match=r"cost\[1, 0\] is -inf.* forbidden by \+inf if costs are minimised"):
        linear_sum_assignment([[1.0, np.inf], [-np.inf, 2.0]])


@pytest.mark.parametrize("method", METHODS)
def test_without_rows_or_columns_nothing_is_matched(method: str) -> None:
    for shape in ((0, 0), (0, 3), (2, 0)):
        found = solve(np.zeros(shape), method=method)
        assert (found.rows.size, found.columns.size, found.cost, found.gap) == (0, 0, 0.0, 0.0)
        assert (found.u.shape, found.v.shape) == (shape[:1], shape[1:])
        assert certify(np.zeros(shape), found).cost == 0.0


@pytest.mark.parametrize("method", METHODS)
def test_the_mask_of_a_masked_array_forbids_beside_a_mask(method: str) -> None:
    cost = np.ma.masked_array([[1, 9, 9], [2, 9.5, 7]], mask=[[1, 0, 0], [0, 0, 0]])
    assert solve(cost, method=method).columns.tolist() == [1, 0]
    assert solve(cost, mask=np.array([[0, 0, 0], [1, 0, 0]], bool), method=method).columns.tolist() == [1, 2]
    assert solve(np.ma.masked_array([[np.nan, 1.0]], mask=[[1, 0]]), method=method).cost == 1.0
    assert Reoptimiser(cost).solve().columns.tolist() == [1, 0]
    problem = Reoptimiser(cost)
    with pytest.raises(CostError, match=r"cost is a masked array: pass cost\.data"):
        problem.replace_rows([0], cost[:1])


def test_python_integers_beyond_64_bits_are_costs() -> None:
    matrix = [[10**30, 1], [1, 2**70]]
    assert linear_sum_assignment(matrix)[1].tolist() == scipy_assignment(matrix)[1].tolist() == [1, 0]


def test_read_only_and_mapped_matrices_are_not_copied(tmp_path) -> None:
    cost = np.random.default_rng(0).random((6, 7))
    np.save(tmp_path / "cost.npy", cost)
    mapped = np.load(tmp_path / "cost.npy", mmap_mode="r")
    fixed = cost.copy()
    fixed.setflags(write=False)
    for matrix in (mapped, fixed, fixed.T):
        read = make_matrix(matrix)
        assert np.shares_memory(read.cost, matrix)
        assert read.cost.flags.writeable  # or every kernel would be compiled once more
        assert solve(matrix).cost == pytest.approx(solve(cost).cost)
    lost = make_matrix(np.load(tmp_path / "cost.npy", mmap_mode="r"))
    assert (lost.cost == cost).all()


def test_drop_in_keeps_the_contract_of_scipy() -> None:
    cost = np.random.default_rng(2).random((5, 8))
    cost[cost < 0.2] = np.inf
    for matrix, maximize in ((cost, False), (cost.T, False), (-cost, True), (cost[:, :0], False), (cost > 1, True)):
        rows, columns = linear_sum_assignment(matrix, maximize)
        expected = scipy_assignment(matrix, maximize)
        assert rows.dtype == columns.dtype == np.int64
        assert rows.size == expected[0].size
        assert np.asarray(matrix)[rows, columns].sum() == pytest.approx(np.asarray(matrix)[expected].sum())
        assert (np.diff(rows) > 0).all()
    for bad in ([[np.nan]], [[-np.inf]], [[1.0, np.inf], [2.0, np.inf]]):
        with pytest.raises(ValueError, match=r"nan|inf|matched"):
            linear_sum_assignment(np.array(bad))


@pytest.mark.parametrize(
    ("family", "size"), [("low_rank", 720), ("mc64", 720), ("noisy_linear", 720), ("tie", 720), ("metric", 1100)]
)
@pytest.mark.parametrize("fewer_rows", [0, 60])
def test_where_searches_turn_from_one_method_to_the_other_answers_agree_with_scipy(
    family: str, size: int, fewer_rows: int
) -> None:
    instance = generate(family, size, 3)
    cost = instance.cost[fewer_rows:]
    mask = None if instance.mask is None else instance.mask[fewer_rows:]
    blocked = cost if mask is None else np.where(mask, np.inf, cost)
    rows, columns = scipy_assignment(blocked)
    for found in (solve(cost, mask=mask), solve(cost.T, mask=None if mask is None else mask.T)):
        assert found.cost == pytest.approx(cost[rows, columns].sum(), rel=1e-12)
    found = solve(cost, mask=mask)
    certify(cost, found, mask=mask)
    assert solve(-cost, mask=mask, maximize=True).cost == pytest.approx(-found.cost, rel=1e-12)


def test_long_searches_over_lists_are_finished_over_whole_rows() -> None:
    cost = generate("metric", 1100, 3).cost
    assert solve(cost).counters.repairs < solve(cost, method="core").counters.repairs
