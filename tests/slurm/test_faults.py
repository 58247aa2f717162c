"""Every way in which a job can die, on a real Slurm: the same weights in the end, or a clear stop.

The stage is stopped (SIGSTOP) at a checkpoint while it is hurt, so that no test depends on the machine's speed. By
night alone: what the tests of `LocalAttempts`, `run_child` and `JobWatch` show for every build.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kdgat.cluster import EndKind
from kdgat.stage import Failed, FailureKind, Finished
from tests.slurm.processes import is_alive
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import (
    CHECKPOINT_STEPS,
    PAUSED,
    RESUMED,
    STEADY,
    StageJob,
    deadline_once,
    keep_row,
    site,
    watched,
)
from tests.support.waiting import wait_until

FEW_EPOCHS, MANY_EPOCHS = 12, 400  # 96 steps; those of a series must last for five kills
KILLS = 5


class Undisturbed:
    """Runs that nobody touched, on this machine, by how long they train."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.startup_s = 0.0  # to the end of the first epoch
        self._results: dict[int, tuple[bytes, bytes]] = {}

    def result(self, epochs: int) -> tuple[bytes, bytes]:
        if epochs not in self._results:
            job, began = StageJob(self.path / str(epochs), **STEADY, max_epochs=epochs), time.time()
            assert isinstance(job.run_here().outcome, Finished), job.log
            self.startup_s = job.startup_s(began)
            self._results[epochs] = job.result
        return self._results[epochs]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def make_job(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[Callable[[int], StageJob]]:
    with ExitStack() as stack:
        yield lambda epochs: stack.enter_context(
            watched(StageJob(tmp_path / "job", **STEADY, max_epochs=epochs), slurm)
        )


@pytest.fixture
def job(make_job: Callable[[int], StageJob]) -> StageJob:
    return make_job(FEW_EPOCHS)


def check(job: StageJob, undisturbed: Undisturbed, fault: str, *ends: EndKind, epochs: int = FEW_EPOCHS) -> None:
    """See that the stage came to the same weights and metric rows over these ends; keep a row where it is asked for."""
    assert isinstance(job.finish().outcome, Finished), job.log
    assert job.ends == [end.value for end in ends]
    assert job.result == undisturbed.result(epochs)
    row = {"fault": fault, "ends": job.ends, "paused": job.steps(PAUSED), "resumed": job.steps(RESUMED)}
    keep_row(row)


def lost_nothing(job: StageJob) -> bool:
    """Tell whether each attempt went on exactly where the one before had paused."""
    return job.steps(PAUSED) == job.steps(RESUMED) != []


def test_an_unannounced_timeout_is_graceful(job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    job.start(site()).hold()
    # The stage asked for its end when it began: this one it does not know. Slurm looks at limits every half minute.
    slurm.end_in(job.job_id, 1)
    check(job, undisturbed, "TIMEOUT, not announced", EndKind.PAUSED, EndKind.FINISHED)
    assert "TimeLimit" in job.attempts[0].message
    assert lost_nothing(job)


def test_a_stage_that_knows_its_deadline_pauses_and_loses_nothing(
    job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm, tmp_path: Path
) -> None:
    undisturbed.result(FEW_EPOCHS)
    # Time to get to a checkpoint, on this machine, and some.
    job.start(site(prologue=deadline_once(tmp_path / "deadlines", 6 + 2.5 * undisturbed.startup_s)))
    child = job.hold()
    (path,) = (tmp_path / "deadlines").iterdir()
    job.wait_until(lambda: time.time() > int(path.read_text()) - STEADY["checkpoint_margin_s"], "the deadline")
    os.kill(child, signal.SIGCONT)
    check(job, undisturbed, "deadline known", EndKind.PAUSED, EndKind.FINISHED)
    assert "remain before the job ends" in job.attempts[0].message
    assert lost_nothing(job)


@pytest.mark.parametrize(
    ("series", "kills", "epochs"),
    [
        (0, 1, FEW_EPOCHS),
        *(pytest.param(series, KILLS, MANY_EPOCHS, marks=pytest.mark.nightly) for series in range(1, 5)),
    ],
)
def test_a_worker_killed_at_random_moments_costs_an_interval_at_most(
    make_job: Callable[[int], StageJob],
    undisturbed: Undisturbed,
    slurm: PrivateSlurm,
    series: int,
    kills: int,
    epochs: int,
) -> None:
    job, delays, checkpoint = make_job(epochs).start(site()), random.Random(series), ""
    done = []
    for _ in range(kills):
        checkpoint = job.wait_for_checkpoint(other_than=checkpoint)
        if kills > 1:
            time.sleep(delays.uniform(0.0, 1.0))
        child, worker = job.child(), job.worker(slurm)
        os.kill(child, signal.SIGSTOP)
        done.append(job.steps_done())
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda child=child: not is_alive(child), "the end of the killed job")
        checkpoint = job.directory.newest_checkpoint()
    check(
        job,
        undisturbed,
        f"SIGKILL of the worker, series {series}",
        *[EndKind.JOB_LOST] * kills,
        EndKind.FINISHED,
        epochs=epochs,
    )
    lost = [before - after for before, after in zip(done, job.steps(RESUMED), strict=True)]
    assert max(lost) <= CHECKPOINT_STEPS


@pytest.mark.nightly
def test_a_worker_killed_before_it_reports_is_replaced(
    job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    os.kill(job.start(site()).worker(slurm), signal.SIGKILL)
    check(job, undisturbed, "SIGKILL of the worker before it reports", EndKind.JOB_LOST, EndKind.FINISHED)


@pytest.mark.nightly
def test_a_killed_child_is_started_again(job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    child = job.start(site()).hold()
    done = job.steps_done()
    os.kill(child, signal.SIGKILL)
    check(job, undisturbed, "SIGKILL of the training process", EndKind.PROCESS_KILLED, EndKind.FINISHED)
    assert done - job.steps(RESUMED)[0] <= CHECKPOINT_STEPS


def test_a_dead_node_is_left_out(job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    job.start(site(silence_timeout_s=600)).hold()  # Slurm notices first
    node = slurm.job(job.job_id)["NodeList"]
    try:
        slurm.kill_node(node)
        job.wait_until(lambda: len(job.attempts) == 2, "another attempt")
    finally:
        slurm.revive_node(node)
    check(job, undisturbed, "node dead: slurmd and all processes", EndKind.NODE_FAILURE, EndKind.FINISHED)
    assert job.attempts[1].node != node
    assert job.attempts[1].excluded_nodes == (node,)


def test_a_frozen_worker_is_woken_to_save(job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    job.start(site(silence_timeout_s=4)).hold()
    os.kill(job.worker(slurm), signal.SIGSTOP)
    check(job, undisturbed, "worker frozen, silence_timeout_s 4", EndKind.PAUSED, EndKind.FINISHED)
    assert lost_nothing(job)


def test_a_node_whose_death_slurm_does_not_notice_is_left_out(
    job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    job.start(site(silence_timeout_s=4)).hold()
    node = slurm.job(job.job_id)["NodeList"]
    try:
        slurm.kill_node(node)
        job.wait_until(lambda: len(job.attempts) == 2, "another attempt")
    finally:
        slurm.revive_node(node)
    check(job, undisturbed, "node dead, silence_timeout_s 4", EndKind.FROZEN, EndKind.FINISHED)
    assert job.attempts[1].excluded_nodes == (node,)


@pytest.mark.nightly
def test_a_frozen_training_process_is_woken_to_save(job: StageJob, undisturbed: Undisturbed) -> None:
    job.start(site(stall_timeout_s=4)).hold()
    check(job, undisturbed, "training process frozen, stall_timeout_s 4", EndKind.FROZEN, EndKind.FINISHED)
    assert lost_nothing(job)


def test_too_little_memory_grows_until_it_is_enough(
    job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    if not slurm.has_memory_limits:
        pytest.fail("this machine's cgroups do not limit memory")
    job.start(site(), memory="250M").finish()
    check(job, undisturbed, "memory over the limit (250M)", *map(EndKind, job.ends))
    assert job.ends[0] == EndKind.HOST_OOM.value
    memory = [record.resources.memory_mib for record in job.attempts if record.resources is not None]
    assert memory[:2] == [250, 375]


@pytest.mark.nightly
def test_a_full_disk_is_waited_for(job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    checkpoints = job.directory.checkpoints_path
    checkpoints.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(checkpoints)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount: {mounted.stderr.strip()}")
    try:
        child = job.start(site()).hold()
        filler = checkpoints / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(4 << 20))
        os.kill(child, signal.SIGCONT)
        job.wait_until(lambda: job.ends[:1] == [EndKind.FAILED.value], "a job that has tried again in vain")
        outcome = job.directory.read_outcome()
        assert isinstance(outcome, Failed)
        assert outcome.kind == FailureKind.ENVIRONMENT
        assert "No space left on device" in outcome.evidence
        filler.unlink()
        job.finish()
        failed = [EndKind.FAILED] * (len(job.ends) - 1)
        check(job, undisturbed, "disk full during a checkpoint", *failed, EndKind.FINISHED)
    finally:
        subprocess.run(["umount", str(checkpoints)], check=True)


@pytest.mark.nightly
def test_a_damaged_newest_checkpoint_is_passed_over(
    job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    job.start(site())
    job.wait_until(lambda: len(list(job.directory.checkpoints_path.glob("*.pt"))) == 2, "two checkpoints")
    child, worker, done = job.hold(), job.worker(slurm), job.steps_done()
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not is_alive(child), "the end of the killed job")
    newest = job.directory.path / job.directory.newest_checkpoint()
    newest.write_bytes(newest.read_bytes()[:-100])
    check(job, undisturbed, "newest checkpoint damaged", EndKind.JOB_LOST, EndKind.FINISHED)
    assert "is damaged" in job.log
    assert done - job.steps(RESUMED)[0] <= 2 * CHECKPOINT_STEPS  # it goes back to the checkpoint before


@pytest.mark.nightly
def test_a_controller_that_does_not_answer_is_waited_for(
    job: StageJob, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    slurm.stop_controller()
    try:
        job.start(site()).wait_until(lambda: EndKind.UNREACHABLE.value in job.ends, "an unanswered sbatch")
    finally:
        slurm.start_controller()
    job.finish()
    check(job, undisturbed, "no controller", *[EndKind.UNREACHABLE] * (len(job.ends) - 1), EndKind.FINISHED)
