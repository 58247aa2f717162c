import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdgat.stage import Finished, Paused, RunDirectory
from kdgat.stage.process import PARENT_PROCESS_VARIABLE
from tests.can.stage_inputs import FAST, SMALL_GAT, make_stage, make_stores
from tests.support.command_line import PROGRAM, kdgat
from tests.support.waiting import TIMEOUT_S, wait_until

# Not rich and jinja2: lightning and torch_geometric import them.
NOT_ON_A_TRAINING_NODE = ("polars", "numba", "prefect", "plotly", "sklearn", "typer")


def training(path: Path, **settings: Any) -> RunDirectory:
    config = {"gat": SMALL_GAT, "training": {**FAST, **settings}}
    return make_stage(path / "run", "normal", config, make_stores(path))


@pytest.mark.processes
def test_a_finished_stage_exits_0_and_needs_only_the_training_dependencies(tmp_path: Path) -> None:
    directory = training(tmp_path)
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({NOT_ON_A_TRAINING_NODE!r}))\n"  # None: import raises
        f"from kdgat.cli.main import main\nmain(['stage', 'run', {str(directory.path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert isinstance(directory.read_outcome(), Finished)


@pytest.mark.processes
def test_a_directory_in_use_is_waited_for_and_a_paused_stage_exits_75_with_a_checkpoint(tmp_path: Path) -> None:
    directory = training(tmp_path, max_epochs=100_000, patience=None, checkpoint_every_steps=1)
    command = [*PROGRAM, "stage", "run", str(directory.path), "--quiet", "--wait-s", "60"]
    with contextlib.ExitStack() as stack:
        with directory.lock():
            assert str(os.getpid()) in kdgat("stage", "run", directory.path, status=69).stderr
            process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stderr is not None
            assert process.stderr.readline().startswith("waiting")
            assert not directory.checkpoints_path.is_dir()
        wait_until(directory.checkpoints_path.is_dir, "a checkpoint")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 75
    outcome = directory.read_outcome()
    assert isinstance(outcome, Paused)
    assert (directory.path / outcome.checkpoint).is_file()


def test_a_failed_stage_exits_1_and_says_why(tmp_path: Path) -> None:
    directory = training(tmp_path)
    (tmp_path / "validation.h5").unlink()
    assert "validation.h5" in kdgat("stage", "run", directory.path, status=1).stderr


@pytest.mark.processes
def test_a_stage_whose_parent_is_gone_does_not_start(tmp_path: Path) -> None:
    directory = training(tmp_path)
    environment = {**os.environ, PARENT_PROCESS_VARIABLE: "1"}
    command = [*PROGRAM, "stage", "run", str(directory.path)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGTERM
    assert directory.read_outcome() is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--site", "nosuch"), "nosuch"),
        (("--site", "slurm-test", "--memory", "64G"), "--memory 64G is above what site slurm-test grants"),
        (("--site", "local", "--cores", "2"), "with --site local"),
    ],
)
def test_wrong_options_of_a_job_are_refused_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    directory = training(tmp_path)
    assert said in kdgat("stage", "run", directory.path, *words, status=1).stderr
    assert not directory.attempts_path.exists()
