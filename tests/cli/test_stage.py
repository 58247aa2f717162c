import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Finished, Paused
from kdgat.stage.parent import PARENT_PROCESS_VARIABLE
from tests.can.stage_inputs import FAST, SMALL_GAT, make_stage, make_stores
from tests.cli.run_kdgat import run_kdgat

# Not rich and jinja2: lightning and torch_geometric import them.
NOT_ON_A_TRAINING_NODE = ("polars", "numba", "prefect", "plotly", "sklearn", "typer")


def training(path: Path, **settings: Any) -> RunDirectory:
    config = {"gat": SMALL_GAT, "training": {**FAST, **settings}}
    return make_stage(path / "run", "normal", config, make_stores(path))


def test_a_finished_stage_exits_0_and_needs_only_the_training_dependencies(tmp_path: Path) -> None:
    directory = training(tmp_path)
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({NOT_ON_A_TRAINING_NODE!r}))\n"  # None: import raises
        f"from kdgat.cli.main import main\nmain(['stage', 'run', {str(directory.path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert isinstance(directory.read_outcome(), Finished)


def test_a_paused_stage_exits_75_with_a_checkpoint(tmp_path: Path) -> None:
    directory = training(tmp_path, max_epochs=100_000, patience=None, checkpoint_every_steps=1)
    process = subprocess.Popen([sys.executable, "-m", "kdgat.cli.main", "stage", "run", str(directory.path), "--quiet"])
    give_up_at = time.monotonic() + 60.0
    while not directory.checkpoints_path.is_dir() and time.monotonic() < give_up_at:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60.0) == 75
    outcome = directory.read_outcome()
    assert isinstance(outcome, Paused)
    assert (directory.path / outcome.checkpoint).is_file()


def test_a_failed_stage_exits_1_and_says_why(tmp_path: Path) -> None:
    directory = training(tmp_path)
    (tmp_path / "validation.h5").unlink()
    done = run_kdgat("stage", "run", str(directory.path))
    assert done.returncode == 1
    assert "validation.h5" in done.stderr


def test_a_directory_without_a_spec_is_a_user_mistake(tmp_path: Path) -> None:
    done = run_kdgat("stage", "run", str(tmp_path))
    assert done.returncode == 1
    assert "spec.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_in_use_is_waited_for(tmp_path: Path) -> None:
    directory = training(tmp_path)
    with directory.lock():
        busy = run_kdgat("stage", "run", str(directory.path))
        assert busy.returncode == 1
        assert str(os.getpid()) in busy.stderr
        command = [sys.executable, "-m", "kdgat.cli.main", "stage", "run", str(directory.path), "--wait-s", "60"]
        waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith("waiting")
    waiting.communicate(timeout=60.0)
    assert waiting.returncode == 0


def test_a_stage_whose_parent_is_gone_does_not_start(tmp_path: Path) -> None:
    directory = training(tmp_path)
    environment = {**os.environ, PARENT_PROCESS_VARIABLE: "1"}
    command = [sys.executable, "-m", "kdgat.cli.main", "stage", "run", str(directory.path)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGTERM
    assert directory.read_outcome() is None
