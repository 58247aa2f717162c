"""A compute node needs the training dependencies only."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
OPTIONAL = ("polars", "numba", "prefect", "dask", "plotly", "sklearn", "typer")


@pytest.mark.processes
@pytest.mark.nightly  # a contract of import-linter says so, too
def test_training_imports_no_optional_package():
    # PyG takes numba, and other packages, where it finds them: what counts is what kdgat adds to that.
    program = (
        "import sys, torch, torch_geometric, lightning\n"
        "before = set(sys.modules)\n"
        "import kdgat.training.fit, kdgat.training.weights\n"
        f"print([name for name in {OPTIONAL!r} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.processes
def test_preparing_recordings_loads_no_network_library():
    program = (
        "import sys, kdgat.can.training.preparation\n"
        "print([name for name in ('torch', 'torch_geometric', 'lightning') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
