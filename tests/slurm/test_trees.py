"""A pretraining on trees whose first job ends before it is done: the next one goes on, to the same weights."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.attempts import Conclusion
from kdgat.cluster import EndKind, StopRequest
from kdgat.run import OutputDirectory
from kdgat.run.plan import create_stage
from kdgat.stage import Finished
from kdgat.trees.family import FAMILY
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import STEADY, StageJob, deadline_once, site, watched
from tests.trees.small_runs import run_up_to, small_config

EPOCHS = 12


class PretrainingJob(StageJob):
    """A pretraining of seconds, its trees drawn."""

    def __init__(self, path: Path) -> None:
        config = small_config(
            f"training.max_epochs={EPOCHS}",
            "training.checkpoint_every_steps=3",
            *(f"training.{key}={STEADY[key]}" for key in ("checkpoint_interval_s", "checkpoint_margin_s")),
        )
        run, output = FAMILY.plan(config), OutputDirectory(path / "out")
        prepared = run_up_to(config, output.path, "prepare")
        self.path = path
        self.directory, _ = create_stage(run, run.plan[1], prepared, output)
        self.lines: list[str] = []
        self.states: list[tuple[str, str]] = []
        self.stop = StopRequest()
        self._thread: threading.Thread | None = None
        self._ended: list[Conclusion | BaseException] = []


@pytest.fixture
def job(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[PretrainingJob]:
    with watched(PretrainingJob(tmp_path / "job"), slurm) as job:
        assert isinstance(job, PretrainingJob)
        yield job


def test_a_pretraining_that_its_job_s_end_cuts_ends_with_the_same_weights(job: PretrainingJob, tmp_path: Path) -> None:
    undisturbed, began = PretrainingJob(tmp_path / "undisturbed"), time.time()
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
