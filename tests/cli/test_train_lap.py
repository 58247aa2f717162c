import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kdgat.cli.main import main
from kdgat.lap.results import read_results
from kdgat.lap.warm_start import WarmStart
from kdgat.run.directory import OutputDirectory, StageState
from tests.cli.run_kdgat import run_kdgat
from tests.lap.runs import MEDIUM, OVERRIDES, SMALL, SmallRun, small_config

# Long enough to be killed in the middle; a checkpoint every few steps.
LONG = (*OVERRIDES, "training.max_epochs=60", "training.checkpoint_every_steps=10", "data.families=[uniform]")
GROUP = f"{SMALL}_and_{MEDIUM}-seed0"
TIMEOUT_S = 300.0


def words(out: Path) -> list[str]:
    overrides = [word for override in LONG for word in ("-O", override)]
    return ["train", "lap", "--out", str(out), "--stages", SMALL, MEDIUM, "--two-in-one", *overrides]


@pytest.mark.slow
def test_a_killed_command_goes_on_in_the_stage_that_was_cut_and_comes_to_the_same_weights(tmp_path: Path) -> None:
    config = small_config([*LONG, f"jobs=[[{SMALL}, {MEDIUM}]]"], stages=[SMALL, MEDIUM])
    whole = SmallRun(config, tmp_path / "whole").up_to(GROUP)  # the same stages, never cut

    out = OutputDirectory(tmp_path / "killed")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "kdgat.cli.main", *words(out.path)],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        give_up_at = time.monotonic() + TIMEOUT_S
        while not list(out.stages_path.glob(f"*/checkpoints/{MEDIUM}/checkpoint-*.pt")):  # in the job's second stage
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < give_up_at, (tmp_path / "log").read_text()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert out.read_index().record(GROUP).state == StageState.RUNNING

    done = run_kdgat(*words(out.path), timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    states = {record.name: record.state for record in out.read_index().stages}
    assert states["prepare-16"] == StageState.CACHED
    assert {states[GROUP], states["evaluation-seed0"]} == {StageState.FINISHED}
    directory = out.stage_directory(out.read_index().record(GROUP))
    for file in ("weights.safetensors", f"weights/{SMALL}/weights.safetensors"):
        assert (directory.path / file).read_bytes() == (whole.path / file).read_bytes()
    assert [row["epoch"] for row in directory.read_metrics()] == [*range(60), *range(60)]

    results = read_results(out.results_path)
    assert {(group.family, group.size) for group in results.groups} == {("uniform", 16), ("uniform", 24)}
    assert str(out.results_path) in done.stdout
    assert out.report_path.is_file()
    WarmStart.load(out.path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "stages: mid_1536 starts from the weights of small_1024_only"),
        (("-O", "start_from=out"), "start_from=out is --out itself"),
        (("-O", "start_from=other"), "no run and no weights are there"),
    ],
)
def test_a_run_that_cannot_be_planned_is_refused_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "lap", "--preset", "full", "--stages", "mid_1536", "--out", "out", *more])
    assert stop.value.code == 1
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
