"""`kdgat lap solve FILE`: an optimal assignment of somebody's own cost matrix, with its proof."""

from __future__ import annotations

import io
import json
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdgat.base import UserError, check_file, say
from kdgat.cli.compilation import compilation_told

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse import csr_array

    from kdgat.assignment import Assignment

OUT_SUFFIXES: Final = (".csv", ".npz")
WARM_UP_SIZE: Final = 150  # of the matrix that is solved first, so that loading compiled code is not counted as solving


@dataclass(frozen=True)
class Solved:
    """A solved problem and the seconds it took."""

    cost: NDArray[np.float64] | csr_array  # [n, m]
    mask: NDArray[np.bool_] | None
    assignment: Assignment
    seconds: float
    maximize: bool
    weights: Path | None

    @property
    def num_forbidden(self) -> int:
        """Return how many pairs are forbidden."""
        matrix: Any = self.cost
        if hasattr(matrix, "nnz"):
            return int(matrix.shape[0] * matrix.shape[1] - matrix.nnz)
        return 0 if self.mask is None else int(self.mask.sum())


def solve_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Costs: .npy, .npz, .mtx (absent pairs are forbidden), .csv, .txt (table or OR-Library), .mat, .h5.",
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model", metavar="RUN", help="Start from what a network predicts: --out of `train lap`, or weights."
        ),
    ] = None,
    index: Annotated[int | None, typer.Option("--index", help="Which problem of an .h5 file, from 0.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Which array of an .npz, .mat or .h5 file.")] = None,
    maximize: Annotated[
        bool, typer.Option("--maximize", help="Seek the largest total instead of the smallest.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the matching: .csv (row, column, cost) or .npz (with duals)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, with the matching.")] = False,
) -> None:
    """Match rows to columns at least total cost, exactly, and prove it.

    All rows are matched, or all columns where they are fewer; rows and columns are counted from 0. The proof is a set
    of dual potentials whose sum no assignment can undercut. A model changes how long it takes, never what comes out.
    """
    if out is not None and out.suffix.lower() not in OUT_SUFFIXES:
        raise UserError(f"--out {out}: the name ends in neither {' nor '.join(OUT_SUFFIXES)}: choose one of them")
    if out is not None:
        check_file(out, "--out")
    with _ended_by_interrupt(), compilation_told(quiet=False):
        solved = solve_file(file, model=model, index=index, key=key, maximize=maximize)
    if out is not None:
        write_matching(out, solved)
    if as_json:
        typer.echo(json.dumps(describe(solved)))
        return
    for line in sentences(solved):
        typer.echo(line)
    if out is not None:
        typer.echo(f"matching   {out}")


@contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once: compiled code looks at no signal, and nothing is half written meanwhile."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def solve_file(
    file: Path, *, model: Path | None = None, index: int | None = None, key: str | None = None, maximize: bool = False
) -> Solved:
    """Read and solve a problem.

    Raises:
        UserError: if the file holds no cost matrix that can be read.
        CostError, InfeasibleError: if it cannot be solved.
        StageInputError, WeightsError: if the model cannot be used.
    """
    import numpy as np

    from kdgat.assignment import solve
    from kdgat.assignment.files import dense, read_matrix
    from kdgat.lap.api import WarmStart
    from kdgat.lap.instances.schema1 import read_record
    from kdgat.training import one_thread

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        found = read_matrix(file, index=index, key=key, read_record=read_record)
    for note in notes:
        say(f"note: {note.message}")
    if not isinstance(found, tuple):
        sparse = None if model is not None else _solve_sparse(found, maximize)
        if sparse is not None:
            return sparse
        found = dense(found)
    cost, mask = found
    # Of the same kind as the problem: rectangles and masks run code of their own.
    warm_up = np.random.default_rng(0).random((WARM_UP_SIZE, WARM_UP_SIZE + int(cost.shape[0] != cost.shape[1])))
    no_pairs = None if mask is None else np.zeros(warm_up.shape, bool)
    if model is None:
        for method in ("auto", "core"):
            solve(warm_up, mask=no_pairs, method=method)
        started = time.perf_counter()
        assignment = solve(cost, mask=mask, maximize=maximize)
        return Solved(cost, mask, assignment, time.perf_counter() - started, maximize, None)
    warm_start = WarmStart.load(model)
    with one_thread():
        warm_start.solve(warm_up, no_pairs)
        started = time.perf_counter()
        assignment = warm_start.solve(cost, mask, maximize=maximize)
        seconds = time.perf_counter() - started
    return Solved(cost, mask, assignment, seconds, maximize, warm_start.weights_path)


def _solve_sparse(matrix: csr_array, maximize: bool) -> Solved | None:
    """Solve a large sparse matrix from its entries; None if it is better made dense."""
    from scipy.sparse import eye_array

    from kdgat.assignment.entries import is_better_dense, solve_entries

    if is_better_dense(matrix):
        return None
    solve_entries(eye_array(2 * WARM_UP_SIZE))
    started = time.perf_counter()
    assignment = solve_entries(matrix, maximize=maximize)
    return Solved(matrix, None, assignment, time.perf_counter() - started, maximize, None)


def describe(solved: Solved) -> dict[str, Any]:
    """Return everything that is known of a solved problem as plain data."""
    assignment = solved.assignment
    return {
        "cost": assignment.cost,
        "dual_bound": assignment.dual_bound,
        "gap": assignment.gap,
        "proved_optimal": True,  # the solver raises where its proof fails
        "objective": "maximum" if solved.maximize else "minimum",
        "num_rows": solved.cost.shape[0],
        "num_columns": solved.cost.shape[1],
        "num_forbidden": solved.num_forbidden,
        **asdict(assignment.counters),
        "seed_bound": assignment.seed_bound,
        "milliseconds": 1000.0 * solved.seconds,
        "model": None if solved.weights is None else str(solved.weights),
        "rows": assignment.rows.tolist(),
        "columns": assignment.columns.tolist(),
    }


def sentences(solved: Solved) -> list[str]:
    """Say in a few lines what a solved problem costs, why nothing is better, and what it took."""
    assignment, counters = solved.assignment, solved.assignment.counters
    num_rows, num_columns = solved.cost.shape
    share = solved.num_forbidden / max(1, num_rows * num_columns)
    percent = ">99.9%" if 0.9995 <= share < 1.0 else f"{share:.1%}"
    forbidden = f", {percent} of the pairs forbidden" if share else ""
    side = "more" if solved.maximize else "less"
    offered = solved.weights is not None and counters.seed != "prediction"
    return [
        f"cost       {assignment.cost:.15g} ({'maximum' if solved.maximize else 'minimum'})",
        f"optimal    proved: no assignment costs {side} than {assignment.dual_bound:.15g}"
        f" (gap {assignment.gap:.2g}{', rounding' if assignment.gap else ''})",
        f"matrix     {num_rows:,} x {num_columns:,}{forbidden}",
        f"seed       {counters.seed}{', better than the prediction of the model' if offered else ''}",
        f"work       {counters.greedy_matches:,} matched at once, {counters.augmentations:,} searches, "
        f"{counters.scanned_columns:,} entries scanned",
        f"time       {1000.0 * solved.seconds:.1f} ms",
    ]


def write_matching(path: Path, solved: Solved) -> None:
    """Write the matching: as .csv with one line per pair, as .npz also with duals u, v, the cost and the dual bound."""
    import numpy as np

    from kdgat.base import write_bytes_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    assignment = solved.assignment
    rows, columns = assignment.rows, assignment.columns
    costs = np.asarray(solved.cost[rows, columns])
    if path.suffix.lower() == ".csv":
        pairs = zip(rows.tolist(), columns.tolist(), costs.tolist(), strict=True)
        lines = ["row,column,cost", *(f"{row},{column},{cost!r}" for row, column, cost in pairs)]
        write_bytes_atomically(path, ("\n".join(lines) + "\n").encode())
        return
    buffer = io.BytesIO()
    np.savez(
        buffer,
        rows=rows,
        columns=columns,
        costs=costs,
        u=assignment.u,
        v=assignment.v,
        cost=np.float64(assignment.cost),
        dual_bound=np.float64(assignment.dual_bound),
    )
    write_bytes_atomically(path, buffer.getvalue())
