"""A real curriculum, from recordings on, that is killed ends as the one that nobody touched."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

import numpy as np
import pytest

from kdgat.can.inputs import can_run
from kdgat.can.training.networks import DIFFICULTY_FILE
from kdgat.canbus.simulation import write_dataset
from kdgat.run import run_locally
from kdgat.stage import Finished, RunDirectory
from kdgat.stage.outcome import EXIT_PAUSED
from kdgat.stage.runner import run_stage
from kdgat.training.checkpoints import Checkpoints
from tests.can.small_runs import make_config
from tests.support.command_line import PROGRAM
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.processes

TRIES = 5
NUM_STEPS_PER_EPOCH = 24
TINY = (
    "windows.stride=20",
    "injection.enabled=false",
    "training.batch_size=16",
    "training.checkpoint_every_steps=5",  # no divisor of an epoch: checkpoints lie at other steps in each
    "training.max_epochs=6",
    "training.patience=null",
    "autoencoder.large.hidden_dims=[16, 8, 4]",
    "gat.large.hidden=8",
    "gat.large.heads=2",
    f"curriculum.graphs_per_epoch={16 * NUM_STEPS_PER_EPOCH}",
)
# Signal, and the number of the checkpoint from which on it is sent, some random time later.
STOPS = ((signal.SIGKILL, 2), (signal.SIGTERM, 12))
MANY_STOPS = ((signal.SIGKILL, 2), (signal.SIGKILL, 7), (signal.SIGTERM, 12), (signal.SIGKILL, 18))


def run_until(
    directory: RunDirectory, condition: Callable[[], bool], number: signal.Signals = signal.SIGKILL, delay_s: float = 0
) -> int:
    """Run `kdgat stage run DIR`, send a signal some time after the condition holds, return the exit status."""
    command = [*PROGRAM, "stage", "run", str(directory.path), "--quiet"]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        wait_until(lambda: process.poll() is not None or condition(), str(directory), interval_s=0.002)
        time.sleep(delay_s)
        process.send_signal(number)
        return process.wait(TIMEOUT_S)
    finally:
        process.kill()
        process.wait()


def newest_number(directory: RunDirectory) -> int:
    names = [path.name for path in directory.checkpoints_path.glob("checkpoint-*.pt")]
    return max((int(name[11:19]) for name in names), default=0)


def has_checkpoint(directory: RunDirectory, number: int) -> Callable[[], bool]:
    return lambda: newest_number(directory) >= number


def phase_of(directory: RunDirectory) -> str:
    path = directory.progress_path
    return str(json.loads(path.read_bytes())["phase"]) if path.is_file() else ""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """Return a curriculum that nobody touched, in a run that has what it depends on."""
    path = tmp_path_factory.mktemp("stages")
    write_dataset(path / "data", "synthetic", "tiny")
    data = {"dataset": "synthetic", "data_root": str(path / "data"), "validation_fraction": 0.3}
    run = can_run(make_config("tutorial", TINY, data=data))
    directory = run_locally(run, path / "out", only=["curriculum-large-seed0"])["curriculum-large-seed0"]
    assert directory.read_metrics()[-1]["step"] == 6 * NUM_STEPS_PER_EPOCH
    return directory


def kill_while_scoring(directory: RunDirectory) -> None:
    """Kill the stage before it has the difficulty of all windows; again from scratch where the signal came late."""
    for _ in range(TRIES):
        assert run_until(directory, lambda: phase_of(directory) == "difficulty") == -signal.SIGKILL
        if not (directory.path / DIFFICULTY_FILE).exists():
            return
        for path in (directory.path / DIFFICULTY_FILE, directory.progress_path):
            path.unlink(missing_ok=True)
        shutil.rmtree(directory.checkpoints_path, ignore_errors=True)
    pytest.fail(f"the difficulty was complete before the signal came, {TRIES} times")


@pytest.mark.parametrize("stops", [STOPS, pytest.param(MANY_STOPS, marks=pytest.mark.nightly)])
def test_a_curriculum_killed_while_scoring_and_in_mid_epochs_ends_with_the_same_bytes(
    undisturbed: RunDirectory, stops: tuple[tuple[signal.Signals, int], ...]
) -> None:
    delays = random.Random(0)
    directory = RunDirectory(undisturbed.path.with_name(f"killed-{len(stops)}")).create(undisturbed.read_spec())
    kill_while_scoring(directory)
    assert newest_number(directory) == 0
    steps = []
    for number, checkpoint in stops:
        status = run_until(directory, has_checkpoint(directory, checkpoint), number, delays.uniform(0.0, 0.05))
        assert status == (EXIT_PAUSED if number == signal.SIGTERM else -signal.SIGKILL)
        found = Checkpoints(directory).load_newest()
        assert found is not None
        steps.append((found[1]["state"]["epoch"], found[1]["state"]["step"]))
    assert len({epoch for epoch, _ in steps}) > 1
    assert any(0 < step < NUM_STEPS_PER_EPOCH for _, step in steps)

    assert isinstance(run_stage(directory, quiet=True), Finished)
    assert directory.weights_path.read_bytes() == undisturbed.weights_path.read_bytes()
    assert directory.metrics_path.read_bytes() == undisturbed.metrics_path.read_bytes()
    assert np.array_equal(np.load(directory.path / DIFFICULTY_FILE), np.load(undisturbed.path / DIFFICULTY_FILE))
    outcomes = [one.read_outcome() for one in (directory, undisturbed)]
    assert isinstance(outcomes[0], Finished)
    assert outcomes[0] == outcomes[1]
    assert not list(directory.path.rglob(".*")), "temporary files of the killed attempts are left"
