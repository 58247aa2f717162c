"""Every way in which a job can die, on a real Slurm: the same weights in the end, or a clear stop."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from flows.server import prefect_api
from kdgat.can.synthetic import write_dataset
from kdgat.cluster.site import load_site
from tests.cluster.cluster_run import (
    CHECKPOINT_STEPS,
    CHILD,
    NUM_EPOCHS,
    RESUMED,
    STAGE,
    WORKER,
    ClusterRun,
    Loss,
    append_row,
    ending,
    measure,
    stray_processes,
)
from tests.cluster.slurm import PrivateSlurm

KILLS = 20
# Long enough to be hurt in time, whatever the speed of the machine: that is measured.
SHORT_S, FEWEST_SHORT, MOST_SHORT = 15.0, NUM_EPOCHS, 400
LONG_S, FEWEST_LONG, MOST_LONG = 50.0, 160, 1200  # Slurm looks at walltimes every half minute
TABLE_VARIABLE = "KDGAT_FAULT_TABLE"  # a file that gets a row per fault


@pytest.fixture(scope="module", autouse=True)
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Prefect API for all runs, which would each start their own."""
    path = tmp_path_factory.mktemp("prefect")
    with prefect_api(path / "prefect.db", path / "server.log"):
        yield


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, "synthetic", "small")
    return root


class Undisturbed:
    """Runs that nobody touched, on this machine, by how long they train."""

    def __init__(self, data_root: Path, path: Path) -> None:
        self.data_root, self.path = data_root, path
        self._runs: dict[int, ClusterRun] = {}

    def run(self, epochs: int) -> ClusterRun:
        if epochs not in self._runs:
            run = ClusterRun(self.data_root, self.path / str(epochs), site="local", epochs=epochs).start()
            assert run.finish() == 0, run.printed()
            self._runs[epochs] = run
        return self._runs[epochs]

    def short_epochs(self) -> int:
        """Return how many epochs train for about `SHORT_S`."""
        return min(max(FEWEST_SHORT, self._epochs_in(SHORT_S)), MOST_SHORT)

    def long_epochs(self) -> int:
        """Return how many epochs train for about `LONG_S`."""
        return min(max(FEWEST_LONG, self._epochs_in(LONG_S)), MOST_LONG)

    def _epochs_in(self, seconds: float) -> int:
        return math.ceil(seconds / self.run(NUM_EPOCHS).epoch_s())


@pytest.fixture(scope="module")
def undisturbed(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(data_root, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def start_point(data_root: Path, tmp_path: Path, undisturbed: Undisturbed) -> Callable[[int], ClusterRun]:
    """Make a run with its data prepared, so that the one job that is left is the one that trains."""

    def make(epochs: int) -> ClusterRun:
        done = undisturbed.run(epochs)
        shutil.copytree(done.out, tmp_path / "out", ignore=shutil.ignore_patterns(f"{STAGE}-*", "prefect"))
        return ClusterRun(data_root, tmp_path / "out", epochs=epochs)

    return make


@pytest.fixture
def run(
    start_point: Callable[[int], ClusterRun], undisturbed: Undisturbed, slurm: PrivateSlurm
) -> Iterator[ClusterRun]:
    yield from watched(start_point(undisturbed.short_epochs()), slurm)


@pytest.fixture
def long_run(
    start_point: Callable[[int], ClusterRun], undisturbed: Undisturbed, slurm: PrivateSlurm
) -> Iterator[ClusterRun]:
    yield from watched(start_point(undisturbed.long_epochs()), slurm)


def watched(run: ClusterRun, slurm: PrivateSlurm) -> Iterator[ClusterRun]:
    """Leave nothing of a run behind, and see that it leaves nothing itself."""
    with ending(run):
        yield run
    assert slurm.jobs() == []
    assert stray_processes(run.out) == []


def site_with(tmp_path: Path, **changes: object) -> str:
    """Write the test cluster's site file with some keys changed, and return its path."""
    content = load_site("slurm-test").model_dump(mode="json", exclude_none=True) | changes
    path = tmp_path / "site.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def is_as_undisturbed(run: ClusterRun, undisturbed: Undisturbed) -> bool:
    """Compare weights and metric rows, byte by byte."""
    done = undisturbed.run(run.epochs)
    return run.weights() == done.weights() and (
        run.directory.metrics_path.read_bytes() == done.directory.metrics_path.read_bytes()
    )


def note(fault: str, run: ClusterRun, losses: list[Loss]) -> None:
    """Say what a fault cost, and keep it where the environment asks for it."""
    seconds = [loss.seconds for loss in losses]
    row = {
        "fault": fault,
        "attempts": len(run.attempts),
        "ends": run.ends,
        "lost steps": [loss.steps for loss in losses],
        "seconds": [round(one, 1) for one in seconds],
    }
    print(json.dumps(row))
    if TABLE_VARIABLE in os.environ:
        append_row(Path(os.environ[TABLE_VARIABLE]), row)


def test_an_unannounced_timeout_is_graceful(
    long_run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    run = long_run
    run.start().wait_for_training(num_steps=200)
    run.wait_for_checkpoint()
    # The stage asked for its end when it began: this one it does not know. Slurm looks at limits every half minute.
    job = run.job_id(slurm)
    slurm.end_in(job, 1)
    slurm.wait_for_job(job, "TIMEOUT", "COMPLETING", timeout_s=60)
    loss = measure(run, lambda: None)
    assert run.finish() == 0, run.printed()
    note("TIMEOUT, not announced", run, [loss])
    assert run.ends == ["Paused", "Completed"]
    assert "TIMEOUT" in run.attempts[0].message
    assert loss.steps == 0
    assert is_as_undisturbed(run, undisturbed)


def test_a_stage_that_knows_its_deadline_pauses_and_loses_nothing(
    long_run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    run = long_run
    # A minute is Slurm's smallest walltime; this margin leaves half of it for training.
    run.overrides = (*run.overrides, "training.checkpoint_margin_s=30")
    run.start("--walltime", "00:01:00")
    run.wait_until(lambda: len(run.positions(RESUMED)) > 0, "a second attempt")
    assert run.finish() == 0, run.printed()
    assert set(run.ends[:-1]) == {"Paused"}
    assert run.ends[-1] == "Completed"
    assert "remain before the job ends" in run.attempts[0].message
    note("deadline known", run, run.pauses())
    assert all(loss.steps == 0 for loss in run.pauses())
    assert is_as_undisturbed(run, undisturbed)


@pytest.mark.parametrize("series", range(4))
def test_a_worker_killed_at_random_moments_costs_an_interval_at_most(
    long_run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm, series: int
) -> None:
    run = long_run
    delays = random.Random(series)
    run.start()
    losses = []
    for _ in range(KILLS // 4):
        run.wait_for_training(since=time.time() if losses else 0.0)
        run.wait_for_checkpoint()
        time.sleep(delays.uniform(0.0, 2.0))
        worker = run.process_of(slurm, WORKER)
        losses.append(measure(run, lambda pid=worker: os.kill(pid, signal.SIGKILL)))
    assert run.finish() == 0, run.printed()
    note(f"SIGKILL of the worker, series {series}", run, losses)
    assert run.ends.count("SlurmJobLost") == len(losses)
    assert all(loss.steps <= CHECKPOINT_STEPS for loss in losses)
    assert is_as_undisturbed(run, undisturbed)


def test_a_worker_killed_before_it_reports_is_replaced(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    run.start()
    os.kill(run.process_of(slurm, WORKER), signal.SIGKILL)
    assert run.finish() == 0, run.printed()
    assert run.ends == ["SlurmJobLost", "Completed"]
    assert is_as_undisturbed(run, undisturbed)


def test_a_killed_child_is_started_again(run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    run.start().wait_for_training(num_steps=50)
    run.wait_for_checkpoint()
    child = run.process_of(slurm, CHILD)
    loss = measure(run, lambda: os.kill(child, signal.SIGKILL))
    assert run.finish() == 0, run.printed()
    note("SIGKILL of the training process", run, [loss])
    assert run.ends == ["ProcessKilled", "Completed"]
    assert loss.steps <= CHECKPOINT_STEPS
    assert is_as_undisturbed(run, undisturbed)


def test_scancel_stops_with_a_checkpoint_and_the_same_command_goes_on(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    run.start().wait_for_training(num_steps=200)
    slurm.command("scancel", run.job_id(slurm))
    assert run.finish() == 130, run.printed()
    assert run.ends == ["SlurmCancelled"]
    assert "somebody cancelled job" in run.printed()
    assert slurm.jobs() == []
    run.start()
    assert run.finish() == 0, run.printed()
    note("scancel, and the same command again", run, run.pauses())
    assert [loss.steps for loss in run.pauses()] == [0]
    assert is_as_undisturbed(run, undisturbed)


def test_a_dead_node_is_left_out(run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    run.start().wait_for_training(num_steps=50)
    run.wait_for_checkpoint()
    node = slurm.job(run.job_id(slurm))["NodeList"]
    try:
        loss = measure(run, lambda: slurm.kill_node(node))
        assert run.finish() == 0, run.printed()
    finally:
        slurm.revive_node(node)
    note("node dead: slurmd and all processes", run, [loss])
    assert run.ends == ["SlurmNodeFailure", "Completed"]
    assert loss.steps <= CHECKPOINT_STEPS
    assert run.attempts[1].node != node
    assert run.attempts[1].excluded_nodes == (node,)
    assert is_as_undisturbed(run, undisturbed)


def test_a_frozen_worker_is_woken_to_save(
    long_run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm, tmp_path: Path
) -> None:
    run = long_run  # training goes on while the worker is silent
    run.site = site_with(tmp_path, silence_timeout_s=4)
    run.start().wait_for_training(num_steps=50)
    worker = run.process_of(slurm, WORKER)
    loss = measure(run, lambda: os.kill(worker, signal.SIGSTOP))
    assert run.finish() == 0, run.printed()
    note("worker frozen (SIGSTOP), silence_timeout_s 4", run, [loss])
    assert run.ends == ["Paused", "Completed"]
    assert loss.steps == 0
    assert is_as_undisturbed(run, undisturbed)


def test_a_frozen_training_process_is_woken_to_save(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm, tmp_path: Path
) -> None:
    run.site = site_with(tmp_path, stall_timeout_s=4)
    run.start().wait_for_training(num_steps=50)
    child = run.process_of(slurm, CHILD)
    loss = measure(run, lambda: os.kill(child, signal.SIGSTOP))
    assert run.finish() == 0, run.printed()
    note("training process frozen (SIGSTOP), stall_timeout_s 4", run, [loss])
    assert run.ends == ["WorkerFrozen", "Completed"]
    assert loss.steps == 0
    assert is_as_undisturbed(run, undisturbed)


def test_too_little_memory_grows_until_it_is_enough(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    if not slurm.has_memory_limits:
        pytest.fail("this machine's cgroups do not limit memory")
    run.start("--memory", "300M")
    assert run.finish() == 0, run.printed()
    note("memory over the limit (300M)", run, [])
    assert run.ends[0] == "HostOutOfMemory"
    assert run.ends[-1] == "Completed"
    memory = [record.resources.memory_mib for record in run.attempts if record.resources is not None]
    assert memory[:2] == [300, 450]
    assert is_as_undisturbed(run, undisturbed)


def test_a_full_disk_stops_clearly_and_the_same_command_goes_on(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    checkpoints = run.out / "stages" / undisturbed.run(run.epochs).directory.path.name / "checkpoints"
    checkpoints.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(checkpoints)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount: {mounted.stderr.strip()}")
    try:
        run.start().wait_for_checkpoint()
        filler = checkpoints / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(4 << 20))
        assert run.finish() == 1, run.printed()
        assert "No space left on device" in run.printed()
        assert run.ends == ["StageFailed"]
        filler.unlink()
        run.start()
        assert run.finish() == 0, run.printed()
        note("disk full during a checkpoint", run, [])
        assert is_as_undisturbed(run, undisturbed)
    finally:
        subprocess.run(["umount", str(checkpoints)], check=True)


def test_a_damaged_newest_checkpoint_is_passed_over(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    run.start().wait_for_training(num_steps=50)
    run.wait_until(lambda: len(list(run.directory.checkpoints_path.glob("*.pt"))) == 2, "two checkpoints")
    worker = run.process_of(slurm, WORKER)

    def hurt() -> None:
        os.kill(worker, signal.SIGKILL)
        time.sleep(0.3)
        newest = run.directory.path / run.directory.newest_checkpoint()
        newest.write_bytes(newest.read_bytes()[:-100])

    loss = measure(run, hurt)
    assert run.finish() == 0, run.printed()
    note("newest checkpoint damaged after a SIGKILL", run, [loss])
    assert loss.steps <= 2 * CHECKPOINT_STEPS  # it goes back to the checkpoint before
    assert "is damaged" in run.directory.log_path.read_text()
    assert run.ends == ["SlurmJobLost", "Completed"]
    assert is_as_undisturbed(run, undisturbed)


def test_a_killed_flow_goes_on_when_started_again(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    run.start().wait_for_training(num_steps=200)

    def hurt() -> None:
        assert run.process is not None
        run.process.kill()
        run.process.wait()
        run.start()

    loss = measure(run, hurt)
    assert run.finish() == 0, run.printed()
    note("the flow's process killed, and started again at once", run, [loss])
    assert run.ends == ["FlowProcessLost", "Completed"]
    assert [loss.steps for loss in run.pauses()] == [0]
    assert is_as_undisturbed(run, undisturbed)


def test_the_jobs_of_a_killed_flow_end_by_themselves(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    run.start().wait_for_training(num_steps=100)
    assert run.process is not None
    run.process.kill()
    run.process.wait()
    wait_until(lambda: slurm.jobs() == [], "the end of the job")
    assert run.directory.newest_checkpoint()
    run.start()
    assert run.finish() == 0, run.printed()
    assert [loss.steps for loss in run.pauses()] == [0]
    assert is_as_undisturbed(run, undisturbed)


def test_ctrl_c_says_so_and_cancels_the_job(run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm) -> None:
    run.start().wait_for_training(num_steps=100)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 130, run.printed()
    assert "the jobs are asked for their checkpoints, then cancelled" in run.printed()
    assert slurm.jobs() == []
    run.start()
    assert run.finish() == 0, run.printed()
    note("Ctrl-C, and the same command again", run, run.pauses())
    assert [loss.steps for loss in run.pauses()] == [0]
    assert is_as_undisturbed(run, undisturbed)


def test_a_controller_that_does_not_answer_is_waited_for(
    run: ClusterRun, undisturbed: Undisturbed, slurm: PrivateSlurm
) -> None:
    slurm.stop_controller()
    try:
        run.start()
        run.wait_until(lambda: "SlurmUnreachable" in run.ends, "an unanswered sbatch")
    finally:
        slurm.start_controller()
    assert run.finish() == 0, run.printed()
    assert run.ends[-1] == "Completed"
    assert is_as_undisturbed(run, undisturbed)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = 300.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up_at, f"waited in vain for {what}"
        time.sleep(0.1)
