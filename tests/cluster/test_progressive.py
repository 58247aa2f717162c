"""Progressive training on a real Slurm whose walltime cuts every stage: as if nobody had ever cut it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.cluster.history import AttemptLedger
from kdgat.lap.results import LapResults
from kdgat.run.directory import OutputDirectory, StageState
from tests.cluster.cluster_run import stray_processes
from tests.cluster.slurm import PrivateSlurm

EPOCHS = {"small_512_only": 1000, "small_1024_only": 400, "mid_2048": 300}  # more than twice what a job has time for
TIMEOUT_S = 1800.0  # a machine several times as slow as the one that this was written on
OVERRIDES = (
    "data.families=[uniform, metric]",
    *(f"progression.{name}.{split}=2" for name in EPOCHS for split in ("train", "validation", "test")),
    f"training_of={json.dumps({name: {'max_epochs': epochs} for name, epochs in EPOCHS.items()})}",
    # A minute is Slurm's smallest walltime; this margin leaves half of it for training.
    "training.checkpoint_margin_s=30",
    "evaluation.methods=[scipy, column minima, trained]",
    "evaluation.measured_instances=1",
    "evaluation.repeats=1",
)


def train(out: Path, *words: str) -> None:
    """Give the command as a person does, and wait for its end."""
    options = [word for override in OVERRIDES for word in ("-O", override)]
    command = [*(sys.executable, "-m", "kdgat.cli.main", "train", "lap", "--preset", "quick"), "--out", str(out)]
    log_path = out.with_suffix(".log")
    with log_path.open("ab") as log:
        process = subprocess.Popen([*command, *options, *words], stdout=log, stderr=log, start_new_session=True)
        try:
            assert process.wait(TIMEOUT_S) == 0, log_path.read_text()
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGTERM)
                process.wait(60)


@pytest.fixture
def output(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[OutputDirectory]:
    output = OutputDirectory(tmp_path / "out")
    yield output
    assert slurm.jobs() == []
    assert stray_processes(output.path) == []


def trained(output: OutputDirectory) -> dict[str, tuple[bytes, bytes]]:
    """Return the weights of every stage and what it measured in every epoch, by its name."""
    directories = {
        record.stage: output.stage_directory(record) for record in output.read_index().stages if record.stage in EPOCHS
    }
    return {
        stage: (directory.weights_path.read_bytes(), directory.metrics_path.read_bytes())
        for stage, directory in directories.items()
    }


def test_a_walltime_that_cuts_every_stage_costs_no_step_and_changes_no_weight(output: OutputDirectory) -> None:
    train(output.path, "--site", "slurm-test", "--walltime", "00:01:00")
    records = {record.stage: record for record in output.read_index().stages}
    assert {record.state for record in records.values()} == {StageState.FINISHED}
    for stage in EPOCHS:
        attempts = AttemptLedger(output.stage_directory(records[stage])).records
        assert len(attempts) > 1, stage
        assert {attempt.end for attempt in attempts[:-1]} == {"Paused"}, stage
        assert "remain before the job ends" in attempts[0].message
    results = LapResults.read(output.results_path)
    assert {(group.family, group.size) for group in results.groups} == {
        (family, size) for family in ("uniform", "metric") for size in (512, 1024, 2048)
    }

    undisturbed = OutputDirectory(output.path.with_name("undisturbed"))
    train(undisturbed.path)
    assert list(trained(undisturbed)) == list(EPOCHS)
    assert trained(output) == trained(undisturbed)
