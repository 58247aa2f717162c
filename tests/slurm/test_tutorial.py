"""The tutorial from a laptop to a cluster to nights, as printed: its own Slurm, its own installation."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.cluster import AttemptLedger
from kdgat.registry import Registry
from kdgat.run import OutputDirectory, StageState
from tests.deployments.installed import free_port
from tests.slurm.conftest import require_slurm
from tests.slurm.slurm import PrivateSlurm
from tests.support.tutorial import commands, follow, fresh_clone

NIGHTS = "4. Every night"


@pytest.fixture
def clone() -> Iterator[Path]:
    """Return a folder like a clone, of a short path, which Slurm's sockets need; what was started there ends."""
    require_slurm()
    folder = Path(tempfile.mkdtemp(prefix="kdgat-tutorial-"))
    clone = fresh_clone(folder / "kdgat")
    yield clone
    if PrivateSlurm.exists(clone / ".slurm"):
        PrivateSlurm.attached(clone / ".slurm").stop()
    if (clone / "home" / ".kdgat").is_dir():
        follow("make undeploy", clone)
    shutil.rmtree(folder)


def test_from_a_laptop_to_a_cluster(clone: Path) -> None:
    followed = follow(commands("cluster.md", end=NIGHTS), clone)
    assert followed.failed == [], followed.output
    laptop, cluster = OutputDirectory(clone / "runs" / "laptop"), OutputDirectory(clone / "runs" / "cluster")
    for run in (laptop, cluster):
        assert {record.state for record in run.read_index().stages} == {StageState.FINISHED}
        assert run.report_path.is_file()
    attempts = AttemptLedger(cluster.stage_directory(cluster.read_index().record("normal-large-seed0"))).records
    assert [record.end for record in attempts] == ["Paused"] * (len(attempts) - 1) + ["Completed"]
    assert len(attempts) > 1, "one minute was enough: nothing was cut"
    assert attempts[0].resources is not None
    assert attempts[0].resources.walltime_s == 60
    for text in ("training.max_epochs", "runs/laptop", "runs/cluster"):
        assert text in followed.output
    assert left_over(clone) == ""


def test_to_nights(clone: Path) -> None:
    """After the same simulated drives, without the runs on them."""
    drives = commands("cluster.md").splitlines()[0]
    assert drives.startswith("kdgat data synth")
    followed = follow(f"{drives}\n{commands('cluster.md', begin=NIGHTS)}", clone, {"KDGAT_PORT": str(free_port())})
    assert followed.failed == [], followed.output
    model = Registry(clone / "home" / ".kdgat" / "registry").in_service("can", "synthetic")
    assert model is not None, followed.output
    assert model.id in followed.output
    assert left_over(clone) == ""


def left_over(clone: Path) -> str:
    """List the processes that a page has started and not ended."""
    return subprocess.run(["pgrep", "-af", str(clone)], capture_output=True, text=True, check=False).stdout


@pytest.mark.nightly
def test_from_a_script_to_a_cluster(clone: Path) -> None:
    followed = follow(commands("experiment.md"), clone)
    assert followed.failed == [(1, "kdgat plan mine/net.py --out runs/net -O model.hiden=32")], followed.output
    assert "did you mean 'hidden'" in followed.output
    cluster = OutputDirectory(clone / "runs" / "cluster")
    attempts = AttemptLedger(cluster.stage_directory(cluster.read_index().record("training-seed0"))).records
    assert [record.end for record in attempts] == ["Paused"] * (len(attempts) - 1) + ["Completed"]
    assert len(attempts) > 1, "one minute was enough: nothing was cut"
    assert "the same weights\n" in followed.output.splitlines(keepends=True)
    assert left_over(clone) == ""
