"""A sooner start: what is left out, and that it is left out for numba alone."""

import subprocess
import sys

SCRIPT = """
import sys
from kdgat.can.detection.start import import_compiler
import_compiler()
import numpy as np
from kdgat.can.windows.identifiers import IdentifierNumbers
print(IdentifierNumbers().number(np.array([7, 5, 7], np.uint32)).number.tolist())
print("scipy.linalg" in sys.modules, "cffi" in sys.modules)
import scipy.linalg.cython_blas
print(scipy.linalg.det([[2.0]]))
"""


def test_kernels_run_without_blas_which_can_be_imported_afterwards() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[0, 1, 0]", "False False", "2.0"]
