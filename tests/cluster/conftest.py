"""The private Slurm that the tests of this folder share."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.configuration import missing_commands
from tests.cluster.slurm import PrivateSlurm

INSTALL = Path(__file__).with_name("install.sh")


def require_slurm() -> None:
    """Install Slurm where it is missing and can be installed; skip otherwise, or fail in continuous integration."""
    if not missing_commands():
        return
    answer = subprocess.run(["bash", str(INSTALL)], capture_output=True, text=True)
    if answer.returncode == 0 and not missing_commands():
        return
    reason = answer.stderr.strip() or f"{INSTALL.name} ended well, but missing are: {', '.join(missing_commands())}"
    if os.environ.get("CI"):
        pytest.fail(f"continuous integration skips none: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm() -> Iterator[PrivateSlurm]:
    """Three idle nodes; SLURM_CONF and PATH of this process lead to them until the session ends."""
    require_slurm()
    # Not pytest's own temporary directory: its paths can be too long for Slurm's sockets.
    directory = Path(tempfile.mkdtemp(prefix="kdgat-slurm-"))
    with pytest.MonkeyPatch.context() as patch, PrivateSlurm.boot(directory) as cluster:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster
    shutil.rmtree(directory)
