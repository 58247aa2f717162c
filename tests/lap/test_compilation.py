"""Kernels load where no machine code can be kept, and say so; they leave Python's lock to other threads."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from kdgat.lap.compilation import compiled
from kdgat.lap.solver import solve

PROGRAM = """
import warnings
import numba.core.caching as caching
caching.FunctionCache._impl_class._locator_classes = []  # as if no directory could be written
from kdgat.lap.compilation import compiled
@compiled
def twice(value):
    return value + value
print(twice(21))
"""


def test_kernel_without_a_place_for_its_code_still_works_and_warns() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PROGRAM], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout == "42\n"
    assert "set NUMBA_CACHE_DIR" in done.stderr


@compiled
def spin(counts, limit):  # type: ignore[no-untyped-def]
    """Be busy for `limit` nanoseconds or so."""
    for k in range(limit):
        counts[k % counts.size] += 1


def test_other_threads_run_during_a_kernel() -> None:
    counts = np.zeros(1000, np.int64)
    spin(counts, 1)
    turns = 0
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(spin, counts, 5 * 10**8)
        while not done.done():
            time.sleep(1e-3)
            turns += 1
    assert turns > 3  # 1 or 2 if the kernel keeps the lock, hundreds if not


def test_solves_in_many_threads_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    costs = [rng.random((100 + k, 120)) for k in range(30)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(solve, costs))
    for one, other in zip(together, map(solve, costs), strict=True):
        assert (one.rows == other.rows).all()
        assert (one.columns == other.columns).all()
        assert (one.u == other.u).all()
        assert (one.v == other.v).all()
