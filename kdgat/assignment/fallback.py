"""The first call on a machine: an answer without compiled code of ours, and a process that compiles meanwhile.

    python -m kdgat.assignment.fallback       # compile now, for example when an image is built

Until numba has compiled the solver on a machine, a command would wait ten seconds and more for a matrix that takes
milliseconds. scipy says which matching is best, but not why: the duals are the shortest distances between columns over
matched rows (Bellman and Ford), whole rows at a time. The proof is the same as ever.

numba keeps machine code in a cache, each kernel's in files that appear when they are complete. So a process that
compiles may be killed at any moment, and several may run side by side; a lock keeps that to one.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment import constant_background, core, dense, small
from kdgat.assignment.certificate import ROUNDING, CertificateError, Costs, prove_lines
from kdgat.assignment.result import Assignment, Counters
from kdgat.base import UserError
from kdgat.base.locks import try_lock

MAX_ENTRIES = 1024 * 1024  # above, compiling is soon repaid
SEED = "matching of scipy"
VARIABLE: Final = "KDGAT_LAP_COMPILE"
WAIT, MEANWHILE = "wait", "background"
KERNELS: Final = (small.solve_one, constant_background.solve_listed, core.augment_core, dense.augment_dense)
LOCK: Final = "kdgat-compiling.lock"  # beside the machine code; holds the number of the process that compiles


def solve(cost: NDArray[Any], mask: NDArray[np.bool_] | None, maximize: bool) -> Assignment | None:
    """Return an optimal assignment with its proof, or None for what needs the compiled solver: wrong input, too.

    >>> solve(np.array([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0], [3.0, 2.0, 2.0]]), None, False).cost
    5.0
    """
    from scipy.optimize import linear_sum_assignment

    if cost.ndim != 2 or not 0 < cost.size <= MAX_ENTRIES or cost.dtype.kind not in "fiub":
        return None
    sign = -1.0 if maximize else 1.0
    work = sign * cost.astype(np.float64)
    if mask is not None:
        work[mask] = 0.0
    if not np.isfinite(work.sum()):
        return None
    if mask is not None:
        work[mask] = np.inf
    try:
        rows, columns = linear_sum_assignment(work)
    except ValueError:  # infeasible: the compiled solver names the lines that compete
        return None
    is_tall = work.shape[0] > work.shape[1]
    if is_tall:
        work, order = work.T, np.argsort(columns)
        column_of = rows[order]
    else:
        column_of = columns
    u, v = _duals(work, column_of)
    matched, slack = work[np.arange(column_of.size), column_of], (work - v).min(axis=1)
    if not np.isfinite(matched).all():
        return None
    of_all = Costs(lambda: 0.0, lambda: bool((work == np.rint(work)).all()))
    try:
        proof = prove_lines(matched, slack, u, v, column_of, of_all, is_compiled=False)
    except CertificateError:
        return None
    if is_tall:
        u, v = v, u
    total, bound = sign * proof.cost, sign * proof.bound
    return Assignment(rows, columns, total, sign * u, sign * v, bound, bound, Counters(SEED, rows.size, 0, 0))


def _duals(work: NDArray[np.float64], column_of: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return u [n] and v [m] of an optimal matching of all rows."""
    n, m = work.shape
    matched = work[np.arange(n), column_of]
    over = work - matched[:, None]
    v = np.zeros(m)
    for _ in range(n + 1):
        nearer = np.minimum(v, (over + v[column_of][:, None]).min(axis=0))
        is_last = (v - nearer <= ROUNDING * np.abs(nearer)).all()
        v = nearer
        if is_last:
            break
    is_free = np.ones(m, bool)
    is_free[column_of] = False
    v[is_free] = 0.0
    return matched - v[column_of], v


class CompileSettingError(UserError):
    """KDGAT_LAP_COMPILE has a value that nobody knows."""


def may_wait() -> bool:
    """Return whether the user asked to wait for the compiler at the first call; CompileSettingError."""
    setting = os.environ.get(VARIABLE, MEANWHILE)
    if setting not in (WAIT, MEANWHILE):
        raise CompileSettingError(f"{VARIABLE} is {setting!r}: {WAIT} or {MEANWHILE} are known")
    return setting == WAIT


def is_compiled() -> bool:
    """Return whether the solver's kernels are loaded, or in the cache for this processor and this source."""
    return all(map(_is_ready, KERNELS))


def _is_ready(kernel: Any) -> bool:
    if kernel.signatures or not hasattr(kernel, "_cache"):
        return True
    file = getattr(kernel._cache, "_cache_file", None)
    if file is None:  # no place for machine code
        return False
    processor = kernel.targetctx.codegen().magic_tuple()
    return any(processor in key for key in file._load_index())


def compile_meanwhile() -> bool:
    """Start a process of low priority that compiles and outlives this one; return False if there is no cache for it."""
    if getattr(KERNELS[0]._cache, "_cache_file", None) is None:
        return False
    subprocess.Popen(
        [sys.executable, "-P", "-m", __spec__.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True


def compile_all() -> None:
    """Compile every kernel that `solve`, `solve_batch` and the seeds use, or load it from the cache."""
    from kdgat.assignment.batch import solve_batch
    from kdgat.assignment.exact import solve

    rng = np.random.default_rng(0)
    square, wide = rng.random((40, 40)), rng.random((40, 50))
    solve(square)
    solve(np.where(rng.random((200, 200)) < 0.05, 0.5, 1.0))
    solve(wide, method="core")
    solve(wide, method="dense")
    solve(square, np.zeros(40), np.zeros(40), method="core")
    solve(rng.integers(1, 3, (60, 60)), method="core")
    solve_batch([square])


def main() -> None:
    """Compile, unless another process does so."""
    directory = Path(KERNELS[0].stats.cache_path or ".")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a+") as lock:
        if try_lock(lock) is False:  # without locks two compile, and the later one's code stays
            return
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        os.nice(10)
        compile_all()


if __name__ == "__main__":
    main()
