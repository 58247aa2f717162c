from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from scipy.optimize import linear_sum_assignment
from typer.testing import CliRunner

from kdgat.base import UserError
from kdgat.cli.lap_solve import solve_command, solve_file
from kdgat.stage.families import is_user_error
from tests.lap.small_evaluations import write_instances, write_network
from tests.support.waiting import wait_until

ORLIBRARY = Path(__file__).parents[3] / "shared" / "data" / "lap"

app = typer.Typer()
app.command()(solve_command)


def solve(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.npy"
    np.save(path, np.random.default_rng(0).random((30, 45)))
    return path


def test_cost_proof_and_work_are_printed(costs: Path) -> None:
    printed = dict(line.split(maxsplit=1) for line in solve(costs).splitlines())
    rows, columns = linear_sum_assignment(np.load(costs))
    assert float(printed["cost"].split()[0]) == pytest.approx(np.load(costs)[rows, columns].sum())
    assert printed["optimal"].startswith("proved: no assignment costs less than")
    assert printed["matrix"] == "30 x 45"
    assert printed["time"].endswith(" ms")


@pytest.mark.parametrize("maximize", [False, True])
def test_json_holds_the_matching(costs: Path, maximize: bool) -> None:
    found = json.loads(solve(costs, "--json", *(["--maximize"] if maximize else [])))
    cost = np.load(costs)
    rows, columns = linear_sum_assignment(cost, maximize=maximize)
    assert found["cost"] == pytest.approx(cost[rows, columns].sum())
    assert cost[found["rows"], found["columns"]].sum() == pytest.approx(found["cost"])
    assert found["gap"] == pytest.approx(0, abs=1e-9)
    assert (found["num_rows"], found["num_columns"]) == (30, 45)


def test_a_csv_file_has_a_line_per_pair_with_its_exact_cost(costs: Path, tmp_path: Path) -> None:
    out = tmp_path / "matching.csv"
    assert str(out) in solve(costs, "--out", out)
    with out.open() as file:
        pairs = list(csv.DictReader(file))
    cost = np.load(costs)
    assert len(pairs) == 30
    assert all(float(pair["cost"]) == cost[int(pair["row"]), int(pair["column"])] for pair in pairs)


def test_an_npz_file_holds_duals_that_prove_the_optimum(costs: Path, tmp_path: Path) -> None:
    solve(costs, "--out", tmp_path / "matching.npz")
    with np.load(tmp_path / "matching.npz") as found:
        cost = np.load(costs)
        assert (cost - found["u"][:, None] - found["v"][None, :]).min() > -1e-9
        assert found["u"].sum() + found["v"].sum() == pytest.approx(float(found["cost"]))
        assert cost[found["rows"], found["columns"]].sum() == pytest.approx(float(found["cost"]))


def test_a_model_changes_how_not_what(costs: Path, tmp_path: Path) -> None:
    weights = write_network(tmp_path / "weights")
    without, with_model = (json.loads(solve(costs, "--json", *words)) for words in ([], ["--model", weights]))
    assert with_model["cost"] == pytest.approx(without["cost"])
    assert with_model["model"] == str(weights)
    assert without["model"] is None


def test_a_problem_of_a_store_is_chosen_by_its_index(tmp_path: Path) -> None:
    store = write_instances(tmp_path / "store.h5", 12, families=("sparse",), count=2)
    found = json.loads(solve(store, "--index", 1, "--json"))
    assert found["num_rows"] == 12
    assert found["num_forbidden"] > 0
    assert "pairs forbidden" in solve(store, "--index", 0)


def test_absent_entries_of_a_sparse_file_are_forbidden(tmp_path: Path) -> None:
    path = tmp_path / "costs.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n1 2 9\n2 1 2\n")
    assert json.loads(solve(path, "--json"))["cost"] == 11  # the pair (2, 2) does not exist


def changed(costs: Path, value: float) -> None:
    cost = np.load(costs)
    cost[3, 4] = value
    np.save(costs, cost)


def test_mistakes_are_told_in_one_line_that_names_them(costs: Path, tmp_path: Path) -> None:
    (tmp_path / "old.ckpt").write_bytes(costs.read_bytes())
    cases: list[tuple[list[object], str]] = [
        ([tmp_path / "nothing.npy"], "no such file"),
        ([costs, "--index", 1], "index 1"),
        ([costs, "--out", tmp_path / "matching.xls"], "neither .csv nor .npz"),
        ([costs, "--out", costs / "matching.csv"], "so nothing can be made below it"),
        (
            [costs, "--model", tmp_path / "old.ckpt"],
            "holds Python objects of another program, which are not taken over: name the --out",
        ),
        ([costs, "--model", costs], "is no file of weights: name the --out of `kdgat train`"),
        ([costs, "--model", tmp_path / "nothing"], "no run and no weights are there"),
    ]
    for words, complaint in cases:
        with pytest.raises(ValueError, match=complaint) as caught:
            solve(*words)
        assert is_user_error(caught.value)
        assert "\n" not in str(caught.value)
    changed(costs, np.nan)
    with pytest.raises(ValueError, match=r"cost\[3, 4\] is nan, counted from 0") as caught:
        solve(costs)
    assert is_user_error(caught.value)
    np.save(costs, np.full((2, 2), np.inf))
    with pytest.raises(ValueError, match="at most 0 can be matched") as caught:
        solve(costs)
    assert is_user_error(caught.value)


def has_handler_of_interrupts(pid: int) -> bool:
    """Look whether a process handles SIGINT, as Python does except while it solves."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    return bool(int(line.split()[1], 16) & 1 << signal.SIGINT - 1)


@pytest.mark.processes
def test_an_interrupt_ends_a_long_solve_at_once(tmp_path: Path) -> None:
    path = tmp_path / "slow.npy"
    np.save(path, np.multiply.outer(np.arange(3000.0), np.arange(3000.0)))  # a minute
    command = [sys.executable, "-m", "kdgat.cli.main", "lap", "solve", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: has_handler_of_interrupts(process.pid), "Python")
        wait_until(lambda: not has_handler_of_interrupts(process.pid), "the solver")
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5.0) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()


def test_interrupts_are_as_before_after_a_solve(costs: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    solve(costs)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_wrong_out_is_refused_before_anything_is_solved(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"matching\.txt"):
        solve(tmp_path / "nothing.npy", "--out", "matching.txt")


@pytest.mark.parametrize(("name", "optimum"), [("assign500", 991), ("assign600", 1176)])
def test_published_problems_reach_their_published_optimum(name: str, optimum: int) -> None:
    path = ORLIBRARY / f"{name}.txt"
    if not path.is_file():
        pytest.skip(f"{path} is not there: OR-Library's assignment problems are data of others")
    assert solve_file(path).assignment.cost == optimum


def test_a_heading_of_numbers_is_noted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0,1\n5,7\n6,9\n")
    result = CliRunner().invoke(app, [str(tmp_path / "a.csv")])
    assert result.exit_code == 0
    assert "note: " in result.stderr
    assert "row 1 is 0, 1, and is taken for costs: if it is column names" in result.stderr
    assert "note" not in result.stdout
