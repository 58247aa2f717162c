"""The private Slurm that the tests of this folder share."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster_run import ClusterRun, undisturbed_run
from tests.slurm.configuration import missing_commands
from tests.slurm.processes import is_alive
from tests.slurm.slurm import PrivateSlurm
from tests.support.optional import lack

PREFIX = "kdgat-slurm-"  # then the process that the cluster belongs to
INSTALL = Path(__file__).with_name("install.sh")


def require_slurm() -> None:
    """Install Slurm where it is missing and can be installed; skip otherwise, or fail in continuous integration."""
    if not missing_commands():
        return
    answer = subprocess.run(["bash", str(INSTALL)], capture_output=True, text=True)
    if answer.returncode == 0 and not missing_commands():
        return
    lack(answer.stderr.strip() or f"{INSTALL.name} ended well, but missing are: {', '.join(missing_commands())}")


def end_abandoned_clusters() -> None:
    """End the clusters of test sessions that were killed: nobody else would.

    Workers begin at the same moment: one at a time, or the second finds what the first is just removing.
    """
    folder = Path(tempfile.gettempdir())
    with (folder / f"{PREFIX}{os.geteuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for directory in folder.glob(f"{PREFIX}*-*"):
            owner = directory.name.removeprefix(PREFIX).partition("-")[0]
            ours = directory.stat().st_uid == os.geteuid()
            if ours and owner.isdigit() and not is_alive(int(owner)) and PrivateSlurm.exists(directory):
                PrivateSlurm.attached(directory).stop()
                shutil.rmtree(directory)


@contextmanager
def private_slurm(session: pytest.Session, **settings: Any) -> Iterator[PrivateSlurm]:
    """Boot a cluster of these settings; SLURM_CONF and PATH of this process lead to it meanwhile."""
    require_slurm()
    end_abandoned_clusters()
    # Not pytest's own temporary directory: its paths can be too long for Slurm's sockets.
    directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    with pytest.MonkeyPatch.context() as patch, PrivateSlurm.boot(directory, **settings) as cluster:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster
    if session.testsfailed:
        print(f"\nlogs of the private Slurm: {directory / 'log'}")
    else:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def slurm(request: pytest.FixtureRequest) -> Iterator[PrivateSlurm]:
    """Three idle nodes; SLURM_CONF and PATH of this process lead to them until the session ends."""
    with private_slurm(request.session) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> ClusterRun:
    """A run that nobody touched, in this process: what those that are hurt must come to, byte by byte."""
    return undisturbed_run(tmp_path_factory.mktemp("undisturbed"))
