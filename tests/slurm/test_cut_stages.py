"""A stage whose first job ends before it is done: the next one goes on, to the same weights, whatever the family."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kdgat.experiment
from flows.attempts import Conclusion
from kdgat.cluster import EndKind, StopRequest
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.family import FAMILY as EXPERIMENT
from kdgat.run import OutputDirectory, Run, run_locally
from kdgat.run.plan import create_stage
from kdgat.stage import Finished
from kdgat.trees.family import FAMILY as TREES
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import STEADY, StageJob, deadline_once, site, watched
from tests.trees.small_runs import small_config

EPOCHS = 12
TRAINING = (
    f"training.max_epochs={EPOCHS}",
    "training.checkpoint_every_steps=3",
    "training.patience=null",
    *(f"training.{key}={STEADY[key]}" for key in ("checkpoint_interval_s", "checkpoint_margin_s")),
)


def trees(path: Path) -> Run:
    """Plan a pretraining of seconds, its trees drawn."""
    return TREES.plan(small_config(*TRAINING))


def experiment(path: Path) -> Run:
    """Plan the training of a file, which somebody edits afterwards."""
    source = path.parent / "net.py"
    source.write_text(Path(kdgat.experiment.__file__).with_name("example.py").read_text())
    run = EXPERIMENT.plan(ExperimentConfig.from_preset("quick", {"source": str(source)}, TRAINING))
    source.write_text("from nothing import this\n")
    return run


class PlannedJob(StageJob):
    """The first stage of a run that trains."""

    def __init__(self, path: Path, plan: Callable[[Path], Run]) -> None:
        path.mkdir()
        run, output = plan(path), OutputDirectory(path / "out")
        planned = next(planned for planned in run.plan if planned.stage != "prepare")
        prepared = run_locally(run, output.path, only=["prepare"])
        self.path = path
        self.directory, _ = create_stage(run, planned, prepared, output)
        self.lines: list[str] = []
        self.states: list[tuple[str, str]] = []
        self.stop = StopRequest()
        self._thread: threading.Thread | None = None
        self._ended: list[Conclusion | BaseException] = []


@pytest.fixture(params=[trees, experiment])
def plan(request: pytest.FixtureRequest) -> Callable[[Path], Run]:
    found: Callable[[Path], Run] = request.param
    return found


@pytest.fixture
def job(tmp_path: Path, slurm: PrivateSlurm, plan: Callable[[Path], Run]) -> Iterator[PlannedJob]:
    with watched(PlannedJob(tmp_path / "job", plan), slurm) as job:
        assert isinstance(job, PlannedJob)
        yield job


def test_a_stage_that_its_job_s_end_cuts_ends_with_the_same_weights(
    job: PlannedJob, tmp_path: Path, plan: Callable[[Path], Run]
) -> None:
    undisturbed, began = PlannedJob(tmp_path / "undisturbed", plan), time.time()
    assert isinstance(undisturbed.run_here().outcome, Finished), undisturbed.log
    # Time to get to a checkpoint, on this machine, and some.
    job.start(site(prologue=deadline_once(tmp_path / "deadlines", 6 + 2.5 * undisturbed.startup_s(began))))
    child = job.hold()
    (path,) = (tmp_path / "deadlines").iterdir()
    job.wait_until(lambda: time.time() > int(path.read_text()) - STEADY["checkpoint_margin_s"], "the deadline")
    os.kill(child, signal.SIGCONT)
    assert isinstance(job.finish().outcome, Finished), job.log
    assert job.ends == [EndKind.PAUSED.value, EndKind.FINISHED.value]
    assert "remain before the job ends" in job.attempts[0].message
    assert len(job.directory.read_metrics()) == EPOCHS
    assert job.result == undisturbed.result
