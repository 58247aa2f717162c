"""Kernels load where no machine code can be kept, and say so."""

import os
import subprocess
import sys

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
