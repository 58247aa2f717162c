"""The names that others may import from the package are there, and cost nothing until one is asked for."""

import subprocess
import sys

import pytest

import kdgat.assignment

PROGRAM = """
import sys
import kdgat.assignment
print(sorted(name for name in ("numpy", "numba", "scipy") if name in sys.modules))
from kdgat.assignment import CostError
print(sorted(name for name in ("numpy", "numba", "scipy") if name in sys.modules))
"""


def test_every_name_is_there_and_is_documented() -> None:
    assert len(kdgat.assignment.__all__) > 10
    for name in kdgat.assignment.__all__:
        assert getattr(kdgat.assignment, name).__doc__, name
        assert name in dir(kdgat.assignment)
    with pytest.raises(AttributeError, match="has no attribute 'solve_all'"):
        kdgat.assignment.solve_all  # noqa: B018


@pytest.mark.processes
def test_importing_the_package_or_its_errors_loads_no_library() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
