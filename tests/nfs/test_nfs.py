"""kdgat on a real NFS: each module of `cases` in a machine with a server and three nodes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nfs.machine import missing_packages, run_in_machine
from tests.support.optional import lack
from tests.support.toy import TOY

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
CASES = [
    ("case_locks", "4.2"),
    pytest.param("case_names", "4.2", marks=pytest.mark.nightly),
    pytest.param("case_names", "3", marks=pytest.mark.nightly),
    ("case_repeated", "3"),
    pytest.param("case_repeated_run", "3", marks=pytest.mark.nightly),
    pytest.param("case_run", "4.2", marks=pytest.mark.nightly),  # torch is imported by nine processes
]
OPTIONS = "-q --color=no -p no:cacheprovider -p no:xdist --basetemp=/mnt/tmp/pytest --tb=short --durations=5 --verbose"
TIMEOUT_S = 1800.0  # a machine of one processor, in one that others use

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    """Install what is missing, if that is possible; skip otherwise, or fail in continuous integration."""
    if not missing_packages():
        return
    subprocess.run(["bash", HERE / "install.sh"], check=False)
    if missing := missing_packages():
        lack(f"missing are {', '.join(missing)}: tests/nfs/install.sh installs them on Debian, as root")


@pytest.mark.parametrize(("case", "version"), CASES)
def test_on_nfs(case: str, version: str) -> None:
    lines = [
        f"cd {REPOSITORY}",
        f"export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH={REPOSITORY}:{TOY}",
        f"{sys.executable} -m pytest {OPTIONS} tests/nfs/cases/{case}.py",
    ]
    status, printed = run_in_machine(lines, version=version, timeout_s=TIMEOUT_S)
    assert status == 0, printed
