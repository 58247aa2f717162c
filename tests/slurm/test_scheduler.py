"""Slurm does what the flow relies on, and what its fake does (`tests/cluster/test_fake_slurm.py`)."""

import signal
from collections.abc import Callable, Iterator

import pytest

from kdgat.cluster import Slurm
from kdgat.cluster.clock import SYSTEM_CLOCK
from tests.slurm import processes
from tests.slurm.configuration import ClusterError
from tests.slurm.slurm import PrivateSlurm
from tests.support.fake_slurm import TAKES_MEMORY, ShellScript, SubmitError
from tests.support.scheduler_cases import Cluster, End, check_ending, every_behaviour, every_real_ending


class RealCluster:
    """A `Cluster` of real daemons."""

    def __init__(self, slurm: PrivateSlurm) -> None:
        self._slurm = slurm
        self.scheduler, self.clock = Slurm(), SYSTEM_CLOCK
        self.stop_controller, self.start_controller = slurm.stop_controller, slurm.start_controller
        self.kill_node, self.revive_node = slurm.kill_node, slurm.revive_node

    def submit(self, script: ShellScript, name: str = "wrap", partition: str = "gpu", requeue: bool = False) -> str:
        again = "--requeue" if requeue else "--no-requeue"
        try:
            return self._slurm.submit(
                script.shell, f"--job-name={name}", f"--partition={partition}", again, "--mem=100M"
            )
        except ClusterError as error:
            raise SubmitError(str(error)) from None

    def drain(self) -> None:
        self._update_nodes("State=DRAIN", "Reason=test")

    def undrain(self) -> None:
        self._update_nodes("State=RESUME")

    def suspend(self, job_id: str) -> None:
        self._slurm.command("scontrol", "suspend", job_id)

    def resume(self, job_id: str) -> None:
        self._slurm.command("scontrol", "resume", job_id)

    def requeue(self, job_id: str) -> None:
        self._slurm.command("scontrol", "requeue", job_id)

    def preempt(self, job_id: str) -> None:
        """Submit a job of higher priority for all of the node."""
        node = self._slurm.job(job_id)["NodeList"]
        higher = self._slurm.submit("true", "--partition=urgent", f"--nodelist={node}", "--exclusive")
        self._slurm.wait_for_job(higher, "COMPLETED", timeout_s=60)

    def end_walltime(self, job_id: str) -> None:
        self._slurm.end_in(job_id, 1)

    def kill_script(self, job_id: str) -> None:
        # Not by scancel: Slurm would call that a cancellation. The script first, before it hears of its children.
        processes.send(sorted(self._slurm.processes_of(job_id)), signal.SIGKILL)

    def _update_nodes(self, *changes: str) -> None:
        self._slurm.command("scontrol", "update", f"NodeName={','.join(self._slurm.nodes)}", *changes)


@pytest.fixture
def cluster(slurm: PrivateSlurm) -> Iterator[RealCluster]:
    yield RealCluster(slurm)
    assert slurm.jobs() == []


@every_real_ending
def test_a_job_ends_as_the_fake_says(cluster: RealCluster, end: End, slurm: PrivateSlurm) -> None:
    if end.script is TAKES_MEMORY and not slurm.has_memory_limits:
        pytest.skip(f"no memory limits: {slurm.no_memory_limits_because}")
    check_ending(cluster, end)


@every_behaviour
def test_slurm_behaves_as_the_fake(cluster: RealCluster, behaviour: Callable[[Cluster], None]) -> None:
    behaviour(cluster)
