"""Kernels load where no machine code can be kept, and say so; they leave Python's lock to other threads."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kdgat.assignment import batch, bipartite, certificate, core, dense, levels, padded, rows, small, solve
from kdgat.assignment import constant_background as background
from kdgat.lap.evaluation import baselines
from kdgat.lap.graphs import neighbours
from kdgat.lap.models import inference

PROGRAM = """
import warnings
import numba.core.caching as caching
from kdgat.base.machine_code import compiled
caching.FunctionCache._impl_class._locator_classes = []  # as if no directory could be written
@compiled
def twice(value):
    return value + value
print(twice(21))
"""


@pytest.mark.processes
def test_kernel_without_a_place_for_its_code_still_works_and_warns() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PROGRAM], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout == "42\n"
    assert "set NUMBA_CACHE_DIR" in done.stderr


def test_no_kernel_keeps_the_lock_of_python() -> None:
    modules = (background, baselines, batch, core, dense, neighbours, inference, rows, small)
    found = [kernel for module in modules for kernel in vars(module).values() if hasattr(kernel, "py_func")]
    kept = [each.py_func.__name__ for each in found if each.stats.cache_path and not each.targetoptions.get("nogil")]
    assert len(found) > 10
    assert not kept


def test_every_kernel_that_is_kept_names_whether_it_computes_as_if_nothing_were_nan() -> None:
    """Else it takes that from its first caller, and the one kept of `reduce_rows` compared infinities wrongly."""
    modules = (background, baselines, batch, bipartite, certificate, core, dense, inference, levels, neighbours, padded)
    found = [
        kernel for module in (*modules, rows, small) for kernel in vars(module).values() if hasattr(kernel, "stats")
    ]
    kept = [each for each in found if each.stats.cache_path]
    assert len(kept) > 10
    shared = [certificate.is_proved, certificate.is_whole, small.write_answer, small.pack]  # by callers of both kinds
    assert [each.py_func.__name__ for each in (*kept, *shared) if "fastmath" not in each.targetoptions] == []


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
