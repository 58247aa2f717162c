"""What Slurm does with jobs, as far as watching them relies on it: one table, for the real one and for the fake.

`tests/slurm/test_scheduler.py` runs it against real daemons and `tests/cluster/test_fake_slurm.py` against
`FakeSlurm`: what the tests of the flow believe of the fake is therefore true of Slurm.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pytest

from kdgat.cluster import EndKind
from kdgat.cluster.clock import Clock
from kdgat.cluster.scheduler import GONE, TIME_LIMIT, UNKNOWN, JobStatus, QueuedJob, Scheduler
from kdgat.cluster.slurm import refusal
from tests.support.fake_slurm import (
    ENDS,
    FAILS,
    IS_KILLED,
    LEAVES_SLOWLY,
    SAVES,
    SLEEPS,
    STUBBORN,
    TAKES_MEMORY,
    ShellScript,
    SubmitError,
)

TIMEOUT_S: Final = 120.0
NOBODY: Final = "999999"


class Cluster(Protocol):
    """A cluster with nothing in its queue, and an administrator's hands on it."""

    scheduler: Scheduler
    clock: Clock

    def submit(self, script: ShellScript, name: str = ..., partition: str = ..., requeue: bool = ...) -> str: ...
    def drain(self) -> None: ...
    def undrain(self) -> None: ...
    def suspend(self, job_id: str) -> None: ...
    def resume(self, job_id: str) -> None: ...
    def requeue(self, job_id: str) -> None: ...
    def preempt(self, job_id: str) -> None: ...
    def end_walltime(self, job_id: str) -> None: ...
    def kill_script(self, job_id: str) -> None: ...
    def kill_node(self, node: str) -> None: ...
    def revive_node(self, node: str) -> None: ...
    def stop_controller(self) -> None: ...
    def start_controller(self) -> None: ...


def wait_for(cluster: Cluster, job_id: str, is_there: Callable[[JobStatus], bool]) -> JobStatus:
    """Ask until a job stands so."""
    give_up_at = cluster.clock.monotonic() + TIMEOUT_S
    while not is_there(status := cluster.scheduler.status(job_id)):
        assert cluster.clock.monotonic() < give_up_at, status
        cluster.clock.sleep(0.1)
    return status


def started(cluster: Cluster, script: ShellScript = SLEEPS, **options: Any) -> str:
    """Submit a job, let it begin and its script get as far as to wait."""
    job_id = cluster.submit(script, **options)
    assert wait_for(cluster, job_id, lambda status: status.state == "RUNNING").node
    cluster.clock.sleep(1.0)
    return job_id


def ended(cluster: Cluster, job_id: str) -> JobStatus:
    """Wait for the end of a job."""
    return wait_for(cluster, job_id, lambda status: status.is_over)


def queue(cluster: Cluster) -> dict[str, QueuedJob]:
    """Return all that waits or runs."""
    found = cluster.scheduler.queue()
    assert found is not None
    return found


@dataclass(frozen=True)
class End:
    """A job whose end has a name."""

    script: ShellScript
    damaged: Callable[[Cluster, str], object] | None  # done to it once it runs
    state: str
    reason: str
    exit_code: str | None  # None: depends on how quickly the script heard of it
    once_begun: EndKind
    before: EndKind
    marks: tuple[pytest.MarkDecorator, ...] = ()


def cancel(cluster: Cluster, job_id: str) -> None:
    assert cluster.scheduler.cancel(job_id)


def cancel_slowly(cluster: Cluster, job_id: str) -> None:
    """Cancel, and see that Slurm does not say yet that it was a cancellation."""
    cancel(cluster, job_id)
    cluster.clock.sleep(1.0)
    status = cluster.scheduler.status(job_id)
    assert (status.state, status.is_over, status.is_alive) == ("COMPLETING", False, True)
    assert status.how_it_ended(had_begun=True) is EndKind.JOB_LOST
    assert queue(cluster)[job_id].status.state == "COMPLETING"


def ask_to_leave(cluster: Cluster, job_id: str) -> None:
    assert cluster.scheduler.ask_to_leave(job_id)


def kill_node(cluster: Cluster, job_id: str) -> None:
    """Let the node die; Slurm believes in it for a while."""
    node = cluster.scheduler.status(job_id).node
    cluster.kill_node(node)
    status = cluster.scheduler.status(job_id)
    assert (status.state, status.node) == ("RUNNING", node)
    cluster.revive_node(node)


def end_walltime(cluster: Cluster, job_id: str) -> None:
    cluster.end_walltime(job_id)
    assert wait_for(cluster, job_id, lambda status: status.reason == TIME_LIMIT).how_it_ended(had_begun=True) is (
        EndKind.TIMEOUT
    )


LOST, NO_START = EndKind.JOB_LOST, EndKind.NOT_STARTED
ENDINGS: Final = {
    "completes": End(ENDS, None, "COMPLETED", "None", "0:0", LOST, NO_START),
    "fails": End(FAILS, None, "FAILED", "NonZeroExitCode", "3:0", LOST, NO_START),
    "kills itself": End(IS_KILLED, None, "FAILED", "JobLaunchFailure", "0:9", LOST, LOST),
    "takes too much memory": End(
        TAKES_MEMORY, None, "OUT_OF_MEMORY", "OutOfMemory", "0:125", EndKind.HOST_OOM, EndKind.HOST_OOM
    ),
    "is cancelled": End(SLEEPS, cancel, "CANCELLED", "None", None, EndKind.CANCELLED, EndKind.CANCELLED),
    "is cancelled and leaves slowly": End(
        LEAVES_SLOWLY, cancel_slowly, "CANCELLED", "None", None, EndKind.CANCELLED, EndKind.CANCELLED
    ),
    "is cancelled and does not listen": End(
        STUBBORN,
        cancel,
        "CANCELLED",
        "None",
        "0:9",
        EndKind.CANCELLED,
        EndKind.CANCELLED,
        (pytest.mark.nightly,),  # KillWait
    ),
    "is asked to leave and saves": End(SAVES, ask_to_leave, "COMPLETED", "None", "0:0", LOST, NO_START),
    "is killed": End(
        SLEEPS, lambda cluster, job: cluster.kill_script(job), "FAILED", "JobLaunchFailure", "0:9", LOST, LOST
    ),
    "loses its node": End(
        SLEEPS, kill_node, "NODE_FAIL", "NodeDown", "0:0", EndKind.NODE_FAILURE, EndKind.NODE_FAILURE
    ),
    "is preempted": End(
        SLEEPS,
        lambda cluster, job: cluster.preempt(job),
        "PREEMPTED",
        "None",
        None,
        EndKind.PREEMPTED,
        EndKind.PREEMPTED,
    ),
    "reaches its walltime": End(
        SLEEPS,
        end_walltime,
        "TIMEOUT",
        TIME_LIMIT,
        None,
        EndKind.TIMEOUT,
        EndKind.TIMEOUT,
        (pytest.mark.nightly,),  # Slurm looks at walltimes every half minute
    ),
}


def check_ending(cluster: Cluster, end: End) -> None:
    """Run a job to its end and compare all that is read of it."""
    if end.damaged is None:
        job_id = cluster.submit(end.script)
    else:
        job_id = started(cluster, end.script)
        end.damaged(cluster, job_id)
    status = ended(cluster, job_id)
    assert (status.state, status.reason) == (end.state, end.reason)
    assert status.exit_code == end.exit_code or end.exit_code is None
    assert status.node
    assert status.how_it_ended(had_begun=True) is end.once_begun
    assert status.how_it_ended(had_begun=False) is end.before
    assert cluster.scheduler.cancel(job_id)  # again is no mistake
    assert cluster.scheduler.status(job_id) == status


def a_full_cluster_lets_jobs_wait_and_a_waiting_job_can_be_cancelled(cluster: Cluster) -> None:
    cluster.drain()
    try:
        job_id = cluster.submit(SLEEPS)
        status = wait_for(cluster, job_id, lambda status: status.reason not in ("None", "Priority"))
        assert (status.state, status.node, status.is_waiting, status.is_alive) == ("PENDING", "", True, False)
        cancel(cluster, job_id)
        status = ended(cluster, job_id)
        assert (status.state, status.node, status.exit_code) == ("CANCELLED", "", "0:0")
    finally:
        cluster.undrain()


def jobs_are_listed_with_their_names_while_they_wait_or_run(cluster: Cluster) -> None:
    running = started(cluster, name="one")
    cluster.drain()
    try:
        waiting = cluster.submit(SLEEPS, name="one")
        other = cluster.submit(SLEEPS, name="two")
        found = queue(cluster)
        assert [found[job].name for job in (running, waiting, other)] == ["one", "one", "two"]
        for job in (running, waiting, other):
            listed, asked = found[job].status, cluster.scheduler.status(job)
            assert (listed.state, listed.node) == (asked.state, asked.node)
        assert found[running].status.is_alive
        assert found[waiting].status.is_waiting
        assert cluster.scheduler.cancel(running, waiting, other)
        for job_id in (running, waiting, other):
            ended(cluster, job_id)
        assert not {running, waiting, other} & set(queue(cluster))
    finally:
        cluster.undrain()


def a_suspended_job_says_so_and_goes_on(cluster: Cluster) -> None:
    job_id = started(cluster)
    cluster.suspend(job_id)
    status = wait_for(cluster, job_id, lambda status: status.state == "SUSPENDED")
    assert (status.is_alive, status.is_over) == (True, False)
    cluster.resume(job_id)
    wait_for(cluster, job_id, lambda status: status.state == "RUNNING")
    cancel(cluster, job_id)
    ended(cluster, job_id)


def a_requeued_job_waits_again(cluster: Cluster) -> None:
    job_id = started(cluster, requeue=True)
    cluster.requeue(job_id)
    status = wait_for(cluster, job_id, lambda status: status.is_waiting)
    assert status.how_it_ended(had_begun=True) is LOST
    cancel(cluster, job_id)
    assert ended(cluster, job_id).state == "CANCELLED"


def a_job_that_nobody_knows_is_gone_and_cancelling_it_is_no_mistake(cluster: Cluster) -> None:
    assert cluster.scheduler.status(NOBODY) == JobStatus(GONE)
    assert cluster.scheduler.cancel(NOBODY)
    assert cluster.scheduler.ask_to_leave(NOBODY)


def refused(cluster: Cluster, **options: Any) -> tuple[EndKind, str]:
    """Submit a job in vain, and say why."""
    with pytest.raises(SubmitError) as error:
        cluster.submit(SLEEPS, **options)
    return refusal(str(error.value))


def a_partition_that_is_not_there_is_refused(cluster: Cluster) -> None:
    assert refused(cluster, partition="nosuch") == (
        EndKind.REFUSED,
        "invalid partition specified: nosuch Batch job submission failed: Invalid partition name specified",
    )


def a_controller_that_is_down_answers_nothing_and_loses_nothing(cluster: Cluster) -> None:
    job_id = started(cluster, name="one")
    cluster.stop_controller()
    try:
        scheduler = cluster.scheduler
        questions = (
            lambda: scheduler.status(job_id),
            scheduler.queue,
            lambda: scheduler.cancel(job_id),
            lambda: scheduler.ask_to_leave(job_id),
            lambda: refused(cluster)[0],
        )
        with ThreadPoolExecutor(len(questions)) as pool:  # each of Slurm's commands tries for ten seconds
            answers = [answer.result() for answer in [pool.submit(question) for question in questions]]
        assert answers == [JobStatus(UNKNOWN), None, False, False, EndKind.UNREACHABLE]
    finally:
        cluster.start_controller()
    assert cluster.scheduler.status(job_id).state == "RUNNING"
    cancel(cluster, job_id)
    assert ended(cluster, job_id).state == "CANCELLED"


BEHAVIOURS: Final = (
    a_full_cluster_lets_jobs_wait_and_a_waiting_job_can_be_cancelled,
    jobs_are_listed_with_their_names_while_they_wait_or_run,
    a_suspended_job_says_so_and_goes_on,
    a_requeued_job_waits_again,
    a_job_that_nobody_knows_is_gone_and_cancelling_it_is_no_mistake,
    a_partition_that_is_not_there_is_refused,
    a_controller_that_is_down_answers_nothing_and_loses_nothing,
)

every_ending = pytest.mark.parametrize("end", [pytest.param(end, id=name) for name, end in ENDINGS.items()])
every_real_ending = pytest.mark.parametrize(
    "end", [pytest.param(end, id=name, marks=end.marks) for name, end in ENDINGS.items()]
)
every_behaviour = pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
