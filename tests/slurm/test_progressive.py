"""Progressive training on a real Slurm whose walltime cuts every stage: as if nobody had ever cut it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from kdgat.cluster import AttemptLedger
from kdgat.cluster.script import job_name
from kdgat.lap.config import LapConfig
from kdgat.lap.evaluation.results import LapResults
from kdgat.lap.inputs import lap_run
from kdgat.run import OutputDirectory, StageState, run_locally
from kdgat.stage import RunDirectory
from tests.slurm.cluster_run import stray_processes
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import deadline_once, site
from tests.support.small_runs import as_options

STAGES = ("small_512_only", "small_1024_only", "mid_2048")
SMALL, REAL = (32, 48), (512, 1024, 2048)  # sizes of the matrices of the first stages
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


def of_sizes(stages: Sequence[str], sizes: Sequence[int], epochs: int) -> list[str]:
    """Return the overrides of a run of these stages with matrices of these sizes."""
    lengths = f"training_of={json.dumps({name: {'max_epochs': epochs} for name in stages})}"
    rows = [f"progression.{name}.size={size}" for name, size in zip(stages, sizes, strict=True)]
    return [*OVERRIDES, lengths, *rows, f"stages={json.dumps(stages)}"]


def train(out: Path, *options: str, meanwhile: Callable[[], object]) -> None:
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


def startup_s(last: RunDirectory) -> float:
    """Return how long a process takes to import, and the last stage took from its first line to its first epoch.

    The stages before it compile what it finds on the disk, and so do those of the next run.
    """
    lines = last.log_path.read_text().splitlines()
    first, epoch = lines[0], next(line for line in lines if re.search(r"epoch \d+: ", line))
    began, trained = (datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f") for line in (first, epoch))
    before = time.monotonic()
    subprocess.run([sys.executable, "-c", "import kdgat.lap.stages"], check=True)
    return (trained - began).total_seconds() + time.monotonic() - before


@pytest.fixture
def output(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[OutputDirectory]:
    output = OutputDirectory(tmp_path / "out")
    yield output
    assert slurm.jobs() == []
    assert stray_processes(output.path) == []


def trained(output: OutputDirectory) -> dict[str, tuple[bytes, bytes]]:
    """Return the weights of every stage that trains and what it measured in every epoch, by its name."""
    records = {one.stage: output.stage_directory(one) for one in output.read_index().stages if one.stage in STAGES}
    return {name: (one.weights_path.read_bytes(), one.metrics_path.read_bytes()) for name, one in records.items()}


@pytest.mark.parametrize(
    ("sizes", "epochs", "jobs"),
    [(SMALL, 100, "*_only-*"), pytest.param(REAL, 12, "*", marks=pytest.mark.nightly)],
    ids=["small", "real"],
)
def test_a_walltime_that_cuts_every_stage_costs_no_step_and_changes_no_weight(
    output: OutputDirectory, tmp_path: Path, sizes: tuple[int, ...], epochs: int, jobs: str
) -> None:
    """By night preparations and evaluations are cut, too."""
    stages = STAGES[: len(sizes)]
    overrides = of_sizes(stages, sizes, epochs)
    undisturbed = OutputDirectory(tmp_path / "undisturbed")
    *_, last, _ = run_locally(lap_run(LapConfig.from_preset("quick", {}, overrides)), undisturbed.path).values()
    deadlines = tmp_path / "deadlines"
    cutting = site(prologue=deadline_once(deadlines, 15 + 2.5 * startup_s(last), jobs=jobs))
    site_path = tmp_path / "site.yaml"
    site_path.write_text(yaml.safe_dump(cutting.model_dump(mode="json", exclude_none=True)))

    train(output.path, *as_options(*overrides), "--site", str(site_path), meanwhile=Holder(output, deadlines).look)
    records = {record.stage: record for record in output.read_index().stages}
    assert {record.state for record in records.values()} == {StageState.FINISHED}
    for stage in stages:
        attempts = AttemptLedger(output.stage_directory(records[stage])).records
        assert [attempt.end for attempt in attempts] == ["Paused", "Completed"], stage
        assert "remain before the job ends" in attempts[0].message
        assert attempts[0].checkpoint
    results = LapResults.read(output.results_path)
    assert {(group.family, group.size) for group in results.groups} == {
        (family, size) for family in ("uniform", "metric") for size in sizes
    }
    assert list(trained(undisturbed)) == list(stages)
    assert trained(output) == trained(undisturbed)
