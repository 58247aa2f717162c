"""Progressive training on a real Slurm whose walltime cuts every stage: as if nobody had ever cut it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from kdgat.cluster.history import AttemptLedger
from kdgat.cluster.script import job_name
from kdgat.lap.evaluation.results import LapResults
from kdgat.run.directory import OutputDirectory, StageState
from kdgat.stage.directory import RunDirectory
from tests.slurm.cluster_run import stray_processes
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import deadline_once, site

STAGES = ("small_512_only", "small_1024_only", "mid_2048")
SMALL, REAL = (32, 48, 64), (512, 1024, 2048)  # sizes of the matrices
MARGIN_S = 3
TIMEOUT_S = 1800.0  # a machine several times as slow as the one that this was written on
OVERRIDES = (
    "data.families=[uniform, metric]",
    *(f"progression.{name}.{split}=2" for name in STAGES for split in ("train", "validation", "test")),
    "training.checkpoint_every_steps=2",
    f"training.checkpoint_margin_s={MARGIN_S}",
    "evaluation.methods=[scipy, column minima, trained]",
    "evaluation.measured_instances=1",
    "evaluation.repeats=1",
)


def of_sizes(sizes: tuple[int, ...], epochs: int) -> list[str]:
    """Return options of a run with matrices of these sizes."""
    lengths = f"training_of={json.dumps({name: {'max_epochs': epochs} for name in STAGES})}"
    rows = [f"progression.{name}.size={size}" for name, size in zip(STAGES, sizes, strict=True)]
    return [word for override in (*OVERRIDES, lengths, *rows) for word in ("-O", override)]


def train(out: Path, *options: str, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Give the command as a person does, and wait for its end."""
    command = [*(sys.executable, "-m", "kdgat.cli.main", "train", "lap", "--preset", "quick"), "--out", str(out)]
    log_path, give_up_at = out.with_suffix(".log"), time.monotonic() + TIMEOUT_S
    with log_path.open("ab") as log:
        process = subprocess.Popen([*command, *options], stdout=log, stderr=log, start_new_session=True)
        try:
            while process.poll() is None:
                assert time.monotonic() < give_up_at, log_path.read_text()
                meanwhile()
                time.sleep(0.05)
            assert process.returncode == 0, log_path.read_text()
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGINT)
                process.wait(60)


class Holder:
    """Stops each stage at its first checkpoint until its job is nearly over, however quick this machine is."""

    def __init__(self, output: OutputDirectory, deadlines: Path) -> None:
        self.output, self.deadlines = output, deadlines
        self.held: dict[str, int] = {}  # stage -> its process
        self.released: set[str] = set()

    def look(self) -> None:
        for stage in STAGES:
            for path in self.output.stages_path.glob(f"{stage}-*"):
                directory = RunDirectory(path)
                if stage not in self.held and directory.newest_checkpoint():
                    self.held[stage] = int(json.loads(directory.owner_path.read_bytes())["pid"])
                    os.kill(self.held[stage], signal.SIGSTOP)
                elif stage in self.held and stage not in self.released and self._is_near(path):
                    self.released.add(stage)
                    os.kill(self.held[stage], signal.SIGCONT)

    def _is_near(self, path: Path) -> bool:
        return time.time() > int((self.deadlines / job_name(path)).read_text()) - MARGIN_S


def startup_s(output: OutputDirectory) -> float:
    """Return how long the last stage took from its first line to the end of its first epoch.

    The stages before it compile what it finds on the disk, and so do those of the next run.
    """
    (path,) = output.stages_path.glob(f"{STAGES[-1]}-*")
    lines = RunDirectory(path).log_path.read_text().splitlines()
    first, epoch = lines[0], next(line for line in lines if re.search(r"epoch \d+: ", line))
    began, trained = (datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f") for line in (first, epoch))
    return (trained - began).total_seconds()


@pytest.fixture
def output(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[OutputDirectory]:
    output = OutputDirectory(tmp_path / "out")
    yield output
    assert slurm.jobs() == []
    assert stray_processes(output.path) == []


def trained(output: OutputDirectory) -> dict[str, tuple[bytes, bytes]]:
    """Return the weights of every stage and what it measured in every epoch, by its name."""
    directories = {
        record.stage: output.stage_directory(record) for record in output.read_index().stages if record.stage in STAGES
    }
    return {
        stage: (directory.weights_path.read_bytes(), directory.metrics_path.read_bytes())
        for stage, directory in directories.items()
    }


@pytest.mark.parametrize(
    ("sizes", "epochs"), [(SMALL, 100), pytest.param(REAL, 12, marks=pytest.mark.nightly)], ids=["small", "real"]
)
def test_a_walltime_that_cuts_every_stage_costs_no_step_and_changes_no_weight(
    output: OutputDirectory, tmp_path: Path, sizes: tuple[int, ...], epochs: int
) -> None:
    undisturbed, options = OutputDirectory(tmp_path / "undisturbed"), of_sizes(sizes, epochs)
    train(undisturbed.path, *options)
    deadlines = tmp_path / "deadlines"
    cutting = site(prologue=deadline_once(deadlines, 20 + 2.5 * startup_s(undisturbed)))
    site_path = tmp_path / "site.yaml"
    site_path.write_text(yaml.safe_dump(cutting.model_dump(mode="json", exclude_none=True)))

    train(output.path, *options, "--site", str(site_path), meanwhile=Holder(output, deadlines).look)
    records = {record.stage: record for record in output.read_index().stages}
    assert {record.state for record in records.values()} == {StageState.FINISHED}
    for stage in STAGES:
        attempts = AttemptLedger(output.stage_directory(records[stage])).records
        assert [attempt.end for attempt in attempts] == ["Paused", "Completed"], stage
        assert "remain before the job ends" in attempts[0].message
    results = LapResults.read(output.results_path)
    assert {(group.family, group.size) for group in results.groups} == {
        (family, size) for family in ("uniform", "metric") for size in sizes
    }
    assert list(trained(undisturbed)) == list(STAGES)
    assert trained(output) == trained(undisturbed)
