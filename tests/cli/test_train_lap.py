from pathlib import Path

import pytest

from kdgat.lap.api import WarmStart
from kdgat.lap.evaluation.results import LapResults
from kdgat.run import OutputDirectory, StageState
from tests.lap.runs import MEDIUM, OVERRIDES, SMALL, run_up_to, small_config
from tests.support.command_line import kdgat, run_kdgat, started_kdgat
from tests.support.small_runs import as_options
from tests.support.waiting import TIMEOUT_S, wait_until

# Long enough to be killed in the middle; a checkpoint every few steps.
LONG = (*OVERRIDES, "training.max_epochs=60", "training.checkpoint_every_steps=10", "data.families=[uniform]")
GROUP = f"{SMALL}_and_{MEDIUM}-seed0"


def words(out: Path) -> list[str]:
    return ["train", "lap", "--out", str(out), "--stages", SMALL, MEDIUM, "--two-in-one", *as_options(*LONG)]


@pytest.mark.nightly
def test_a_killed_command_goes_on_in_the_stage_that_was_cut_and_comes_to_the_same_weights(
    tmp_path: Path, prefect_server: object
) -> None:
    config = small_config([*LONG, f"jobs=[[{SMALL}, {MEDIUM}]]"], stages=[SMALL, MEDIUM])
    whole = run_up_to(config, tmp_path / "whole", GROUP)[GROUP]  # the same stages, never cut

    out = OutputDirectory(tmp_path / "killed")
    log = tmp_path / "log"
    checkpoints = f"*/checkpoints/{MEDIUM}/checkpoint-*.pt"  # in the job's second stage
    with started_kdgat(log, *words(out.path)) as process:
        wait_until(
            lambda: process.poll() is not None or list(out.stages_path.glob(checkpoints)),
            "a checkpoint",
            interval_s=0.02,
            log=log.read_text,
        )
        assert process.poll() is None, log.read_text()
        process.kill()
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

    results = LapResults.read(out.results_path)
    assert {(group.family, group.size) for group in results.groups} == {("uniform", 16), ("uniform", 24)}
    assert str(out.results_path) in done.stdout
    assert out.report_path.is_file()
    WarmStart.load(out.path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("-O", "start_from=other"), "no run and no weights are there"),
    ],
)
def test_a_run_that_cannot_be_planned_is_refused_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = kdgat("train", "lap", "--preset", "full", "--stages", "mid_1536", "--out", "out", *more, status=1)
    assert words in refused.stderr
    assert list(tmp_path.iterdir()) == []
