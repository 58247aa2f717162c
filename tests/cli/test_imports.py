"""Planning loads no library that trains or reads recordings: a plan is there in the time that Python takes to start."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

HEAVY = ("torch", "torch_geometric", "lightning", "numba", "scipy", "polars", "h5py", "prefect")
PLAN_LAP = ("plan", "lap", "--preset", "full")


def loaded_by(*words: str) -> str:
    """Run `kdgat` in a fresh interpreter and return the line that says which heavy libraries it has imported."""
    script = (
        "import sys\nfrom kdgat.cli.main import main\n"
        f"try:\n    main({list(words)!r})\nexcept SystemExit as stop:\n"
        f"    assert not stop.code or {'absent' in words}, stop.code\n"  # data that is not there: status 1
        f"print('imported:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("words", [("--help",), ("plan", "can", "--dataset", "absent"), PLAN_LAP])
def test_planning_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    assert loaded_by(*words) == "imported: []"


def test_a_plan_that_counts_windows_loads_what_reads_them_and_not_torch(tmp_path: Path) -> None:
    from kdgat.canbus.simulation import write_dataset

    write_dataset(tmp_path, "synthetic", "tiny")
    assert loaded_by("plan", "can", "--data-root", str(tmp_path)) == "imported: ['polars']"
