"""Attempts as jobs of a real Slurm, without Prefect around them: what goes wrong before and beside training."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest

from flows import slurm_attempts
from flows.attempts import Conclusion, Stage, run_to_end
from flows.slurm_attempts import SlurmAttempts
from kdgat.cluster import slurm as cluster_slurm
from kdgat.cluster.child import StopRequest
from kdgat.cluster.decision import AttemptLimits
from kdgat.cluster.ending import EndKind
from kdgat.cluster.estimate import stage_resources
from kdgat.cluster.history import AttemptLedger, AttemptRecord
from kdgat.cluster.resources import ResourceRequest
from kdgat.cluster.script import job_name
from kdgat.cluster.site import Site, load_site
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Failed, Finished, Paused
from tests.can.stage_inputs import FAST, SMALL_GAT, make_stage, make_stores
from tests.cluster.cluster_run import stray_processes
from tests.cluster.slurm import PrivateSlurm
from tests.support.waiting import when

ENDLESS = {"max_epochs": 100_000, "patience": None, "checkpoint_every_steps": 1, "checkpoint_interval_s": 0}


class Job:
    """A small training stage that runs as a job, and what was told about it."""

    def __init__(self, path: Path, **training: Any) -> None:
        config = {"gat": SMALL_GAT, "training": {**FAST, **training}}
        self.path = path
        self.directory: RunDirectory = make_stage(path / "run", "normal", config, make_stores(path))
        self.lines: list[str] = []
        self.states: list[tuple[str, str]] = []
        self.stop = StopRequest()

    def run(self, site: Site, **request: Any) -> Conclusion:
        resources = stage_resources("normal", {}, site, ResourceRequest(**request))
        return run_to_end(
            Stage(
                self.directory,
                runner=SlurmAttempts(site, self.path / "slurm", {"OMP_NUM_THREADS": "1"}),
                stop=self.stop,
                around=lambda record, perform: perform(
                    self.lines.append, lambda progress: None, lambda *words: self.states.append(words)
                ),
                on_line=self.lines.append,
                resources=resources,
                limits=AttemptLimits.of(site),
            )
        )

    @property
    def attempts(self) -> list[AttemptRecord]:
        return AttemptLedger(self.directory).records

    @property
    def ends(self) -> list[str]:
        return [record.end for record in self.attempts]


@pytest.fixture
def job(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    assert slurm.jobs() == []
    assert stray_processes(job.directory.path) == []


@pytest.fixture
def endless_job(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[Job]:
    job = Job(tmp_path, **ENDLESS)
    yield job
    assert slurm.jobs() == []
    assert stray_processes(job.directory.path) == []


def site(**changes: Any) -> Site:
    return Site.model_validate(load_site("slurm-test").model_dump(exclude_none=True) | changes)


def test_a_stage_finishes_in_a_job_of_its_own(job: Job, slurm: PrivateSlurm) -> None:
    conclusion = job.run(site(), gpus=1)
    assert isinstance(conclusion.outcome, Finished)
    (record,) = job.attempts
    assert record.node in slurm.nodes
    assert record.peak_memory_mib is not None
    assert slurm.job(record.job_id)["JobState"] == "COMPLETED"
    assert "gpu:v100:1" in slurm.job(record.job_id)["TresPerNode"]
    assert any("parameters" in line for line in job.lines)
    assert job.states[-1][0] == "Running"


def test_the_epilogue_and_the_prologue_run_on_the_node(job: Job) -> None:
    told = job.path / "told"
    conclusion = job.run(site(prologue=[f"echo before > {told}"], epilogue=[f"echo after $SLURM_JOB_ID >> {told}"]))
    assert isinstance(conclusion.outcome, Finished)
    assert told.read_text().splitlines() == ["before", f"after {job.attempts[0].job_id}"]


def test_a_refused_job_stops_at_once_with_the_words_of_slurm(job: Job) -> None:
    conclusion = job.run(site(partition="nosuch"))
    assert isinstance(conclusion.outcome, Failed)
    assert "invalid partition specified: nosuch" in conclusion.outcome.evidence
    assert job.ends == [EndKind.REFUSED.value]


def test_a_worker_that_cannot_import_is_not_tried_again(job: Job) -> None:
    python = Path(sys.base_prefix) / "bin" / "python3"  # the interpreter without what is installed beside it
    conclusion = job.run(site(python=str(python)))
    assert isinstance(conclusion.outcome, Failed)
    assert "No module named 'distributed'" in conclusion.outcome.evidence
    assert job.ends == [EndKind.NOT_STARTED.value]


def test_a_python_that_is_not_there_is_looked_for_on_one_more_node(job: Job) -> None:
    conclusion = job.run(site(python="/nowhere/python"))
    assert isinstance(conclusion.outcome, Failed)
    assert "/nowhere/python" in conclusion.outcome.evidence
    assert job.ends == [EndKind.NOT_STARTED.value] * 2


def test_a_prologue_that_fails_the_job_is_tried_on_one_more_node(job: Job) -> None:
    conclusion = job.run(site(prologue=["echo broken node >&2; exit 3"]))
    assert isinstance(conclusion.outcome, Failed)
    assert "broken node" in conclusion.outcome.evidence
    assert job.ends == [EndKind.NOT_STARTED.value] * 2
    assert job.attempts[0].node != job.attempts[1].node


@pytest.fixture
def full_cluster(slurm: PrivateSlurm) -> Iterator[None]:
    """No node takes a job while the test lasts."""
    nodes = ",".join(slurm.nodes)
    slurm.command("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=test")
    yield
    slurm.command("scontrol", "update", f"NodeName={nodes}", "State=RESUME")


@pytest.mark.usefixtures("full_cluster")
def test_a_job_that_waits_too_long_is_given_up_where_the_site_says_so(job: Job) -> None:
    conclusion = job.run(site(start_timeout_s=1.5, on_start_timeout="stop"))
    assert isinstance(conclusion.outcome, Failed)
    assert "has been PENDING" in conclusion.outcome.evidence
    assert job.ends == [EndKind.STILL_PENDING.value]
    assert any(name == "SlurmPending" for name, _ in job.states)


@pytest.mark.usefixtures("full_cluster")
def test_a_job_that_waits_too_long_goes_on_waiting_by_default(job: Job, slurm: PrivateSlurm) -> None:
    when(lambda: any(name == EndKind.STILL_PENDING.value for name, _ in job.states), lambda: job.stop.set("a test"))
    conclusion = job.run(site(start_timeout_s=1.0))
    assert isinstance(conclusion.outcome, Paused)
    assert any("waiting on" in line for line in job.lines)


def test_a_pending_job_that_somebody_cancels_stops(job: Job, slurm: PrivateSlurm, full_cluster: None) -> None:
    when(
        lambda: any(name == "SlurmPending" for name, _ in job.states),
        lambda: slurm.command("scancel", job.attempts[-1].job_id),
    )
    conclusion = job.run(site())
    assert isinstance(conclusion.outcome, Paused)
    assert "somebody cancelled job" in conclusion.outcome.reason
    assert job.ends == [EndKind.CANCELLED.value]


def test_a_stop_request_saves_and_ends_the_job(endless_job: Job, slurm: PrivateSlurm) -> None:
    job = endless_job
    when(lambda: job.directory.newest_checkpoint(), lambda: job.stop.set("a test"))
    conclusion = job.run(site())
    assert isinstance(conclusion.outcome, Paused)
    assert conclusion.outcome.reason == "a test"
    assert (job.directory.path / conclusion.outcome.checkpoint).is_file()
    assert slurm.job(job.attempts[0].job_id)["JobState"] == "COMPLETED"


def test_a_walltime_that_leaves_no_time_to_train_is_refused_with_the_numbers(job: Job, tmp_path: Path) -> None:
    job = Job(tmp_path / "slow", checkpoint_margin_s=90)
    conclusion = job.run(site(limits={"walltime": "00:01:00"}, defaults={"walltime": "00:01:00"}))
    assert isinstance(conclusion.outcome, Failed)
    for words in ("00:01:00 is too short", "needs more than 90 s", "remain before the job ends"):
        assert words in conclusion.outcome.evidence
    assert job.ends == ["Paused"]


def test_a_walltime_that_is_too_short_grows_where_the_site_allows(job: Job, tmp_path: Path) -> None:
    job = Job(tmp_path / "slow", checkpoint_margin_s=90)
    conclusion = job.run(site(), walltime="00:01:00")
    assert isinstance(conclusion.outcome, Finished)
    walltimes = [record.resources.walltime_s for record in job.attempts if record.resources is not None]
    assert walltimes == [60, 180]


def test_a_job_of_a_dead_flow_that_still_waits_is_taken_out_of_the_queue(
    job: Job, slurm: PrivateSlurm, full_cluster: None
) -> None:
    job_id = slurm.submit("sleep 600", "--partition=gpu", f"--job-name={job_name(job.directory.path)}")
    ledger = AttemptLedger(job.directory)
    ledger.submitted(ledger.open(None), job_id)
    when(lambda: slurm.job(job_id)["JobState"] == "CANCELLED", lambda: job.stop.set("a test"))
    job.run(site())
    assert job.ends[0] == "FlowProcessLost"
    assert "is cancelled" in job.attempts[0].message
    assert slurm.job(job_id)["JobState"] == "CANCELLED"


def test_a_job_with_a_number_that_was_ours_once_is_left_alone(job: Job, slurm: PrivateSlurm) -> None:
    stranger = slurm.submit("sleep 600", "--partition=gpu")
    try:
        ledger = AttemptLedger(job.directory)
        ledger.submitted(ledger.open(None), stranger)
        assert isinstance(job.run(site()).outcome, Finished)
        assert slurm.job(stranger)["JobState"] == "RUNNING"
    finally:
        slurm.command("scancel", stranger)
        slurm.wait_for_job(stranger, "CANCELLED")


def test_a_job_that_a_dead_flow_had_no_time_to_note_is_cancelled(job: Job, slurm: PrivateSlurm) -> None:
    stray = slurm.submit("sleep 600", "--partition=gpu", f"--job-name={job_name(job.directory.path)}")
    assert isinstance(job.run(site()).outcome, Finished)
    assert slurm.job(stray)["JobState"] == "CANCELLED"
    assert any(f"job {stray}" in line for line in job.lines)


def test_a_worker_that_dies_with_its_report_has_finished_its_stage(job: Job) -> None:
    # The epilogue's parent is the worker.
    conclusion = job.run(site(epilogue=["kill -KILL $PPID"]))
    assert isinstance(conclusion.outcome, Finished)
    assert job.ends == [EndKind.FINISHED.value]


def test_a_worker_that_dies_before_its_report_is_fetched_hangs_nothing(
    job: Job, slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = distributed.Future.result

    def die_first(future: Any, timeout: Any = None) -> Any:
        slurm.command("scancel", "--signal=KILL", "--full", job.attempts[-1].job_id)
        slurm.command("scancel", job.attempts[-1].job_id)
        slurm.wait_for_job(job.attempts[-1].job_id, "CANCELLED", "FAILED", "COMPLETED")
        return fetch(future, timeout)

    monkeypatch.setattr(distributed.Future, "result", die_first)
    assert isinstance(job.run(site()).outcome, Finished)


def test_a_job_cancelled_in_its_epilogue_has_finished_its_stage(job: Job, slurm: PrivateSlurm) -> None:
    when(
        lambda: isinstance(job.directory.read_outcome(), Finished),
        lambda: slurm.command("scancel", job.attempts[-1].job_id),
    )
    conclusion = job.run(site(epilogue=["sleep 50"]))
    assert isinstance(conclusion.outcome, Finished)


@pytest.mark.parametrize("command", ["sbatch", "scancel"])
def test_a_command_of_slurm_that_hangs_is_not_waited_for_for_ever(
    job: Job, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_attempts, "COMMAND_TIMEOUT_S", 1.0)
    monkeypatch.setattr(cluster_slurm, "COMMAND_TIMEOUT_S", 1.0)
    hanging = tmp_path / "bin" / command
    hanging.parent.mkdir()
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{hanging.parent}:{os.environ['PATH']}")
    if command == "sbatch":
        when(lambda: EndKind.UNREACHABLE.value in job.ends, lambda: job.stop.set("a test"))
        assert isinstance(job.run(site()).outcome, Paused)
        assert f"sbatch {cluster_slurm.NO_ANSWER}" in job.attempts[0].message
    else:
        assert isinstance(job.run(site()).outcome, Finished)
