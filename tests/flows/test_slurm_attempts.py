"""What attempts in Slurm do about jobs that a dead flow left, and about a SIGTERM that nobody explained."""

from pathlib import Path

import pytest

from flows.attempts import Attempt
from flows.slurm_attempts import SETTLE_S, SlurmAttempts
from kdgat.cluster.child import StopRequest
from kdgat.cluster.decision import AttemptLimits, History
from kdgat.cluster.ending import AttemptEnd, EndKind
from kdgat.cluster.history import AttemptLedger, AttemptRecord
from kdgat.cluster.script import job_name
from kdgat.cluster.site import Site
from kdgat.stage.directory import RunDirectory
from tests.support.fake_slurm import LEAVES_SLOWLY, SLEEPS, FakeSlurm

SITE = Site(name="here", scheduler="slurm")


class Left:
    """A run directory whose flow died, and what it left in the queue."""

    def __init__(self, path: Path) -> None:
        self.directory, self.slurm, self.stop = RunDirectory(path / "run"), FakeSlurm(), StopRequest()
        self.name = job_name(self.directory.path)
        self.attempts = SlurmAttempts(SITE, path / "slurm", {}, scheduler=self.slurm, clock=self.slurm.clock)

    def settle(self, job_id: str) -> str:
        return self.attempts.settle(self.directory, AttemptRecord(number=1, job_id=job_id), self.stop)

    def state(self, job_id: str) -> str:
        return self.slurm.status(job_id).state


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


def test_a_flow_that_died_before_it_submitted_left_nothing(left: Left) -> None:
    assert left.settle("") == "it had noted no job"


def test_a_job_that_still_waits_is_taken_out_of_the_queue(left: Left) -> None:
    left.slurm.drain()
    job = left.slurm.submit(SLEEPS, left.name)
    left.slurm.clock.sleep(1)
    assert left.settle(job) == "job 1 was still PENDING Resources and is cancelled"
    assert left.state(job) == "CANCELLED"


def test_a_job_that_runs_may_save_and_end(left: Left) -> None:
    job = left.slurm.submit(SLEEPS, left.name)
    left.slurm.clock.after(60, lambda: left.slurm.jobs[job].exit("0:0"))
    left.slurm.clock.sleep(1)
    assert left.settle(job) == "job 1 is over (COMPLETED)"


def test_a_job_that_does_not_end_is_cancelled_after_a_while(left: Left) -> None:
    job = left.slurm.submit(SLEEPS, left.name)
    left.slurm.clock.sleep(1)
    began = left.slurm.clock.monotonic()
    assert left.settle(job) == "job 1 was still RUNNING and is cancelled"
    assert left.slurm.clock.monotonic() - began == pytest.approx(SETTLE_S, abs=2)


def test_who_stops_meanwhile_does_not_wait_for_it(left: Left) -> None:
    job = left.slurm.submit(SLEEPS, left.name)
    left.slurm.clock.after(10, lambda: left.stop.set("a test"))
    left.slurm.clock.sleep(1)
    assert left.settle(job) == "job 1 was still RUNNING and is cancelled"
    assert left.slurm.clock.monotonic() < 1015


def test_a_job_with_a_number_that_was_ours_once_is_left_alone(left: Left) -> None:
    stranger = left.slurm.submit(SLEEPS, "of somebody else")
    left.slurm.clock.sleep(1)
    assert left.settle(stranger) == "job 1 is over (RUNNING)"
    assert left.state(stranger) == "RUNNING"


def test_what_cannot_be_cancelled_is_said(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    job = left.slurm.submit(SLEEPS, left.name)
    left.stop.set("a test")
    monkeypatch.setattr(left.slurm, "cancel", lambda *jobs: False)
    left.slurm.clock.sleep(1)
    assert left.settle(job) == "job 1 was still RUNNING, not cancelled"


def test_a_job_of_which_slurm_says_nothing_is_waited_for_and_not_called_over(left: Left) -> None:
    job = left.slurm.submit(SLEEPS, left.name)
    left.slurm.clock.after(60, lambda: left.slurm.jobs[job].exit("0:0"))
    left.slurm.clock.after(5, left.slurm.stop_controller)
    left.slurm.clock.after(90, left.slurm.start_controller)
    left.slurm.clock.sleep(10)
    assert left.settle(job) == "job 1 is over (COMPLETED)"
    left.slurm.stop_controller()
    assert left.settle(job) == "job 1 was still UNKNOWN, not cancelled"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("cancel", EndKind.CANCELLED), ("preempt", EndKind.PREEMPTED), ("end_walltime", EndKind.PAUSED)],
)
def test_slurm_says_why_it_ended_a_stage_that_saved(left: Left, fault: str, kind: EndKind) -> None:
    job = left.slurm.submit(LEAVES_SLOWLY, left.name)
    left.slurm.clock.sleep(1)
    getattr(left.slurm, fault)(job)
    end = left.attempts.explain(AttemptEnd(EndKind.PAUSED, "SIGTERM", job_id=job))
    assert end.kind is kind
    assert end.message.startswith(f"SIGTERM ({left.state(job)}")


def test_jobs_that_nobody_noted_are_cancelled_and_those_of_others_left_alone(left: Left) -> None:
    left.directory.path.mkdir()
    ledger = AttemptLedger(left.directory)
    noted, stray, other = (left.slurm.submit(SLEEPS, name) for name in (left.name, left.name, "of somebody else"))
    ledger.submitted(ledger.open(None), noted)
    left.slurm.clock.sleep(1)
    lines: list[str] = []
    left.attempts.cancel_strays(
        Attempt(
            left.directory,
            ledger.records[0],
            ledger,
            History(),
            AttemptLimits(),
            left.stop,
            lines.append,
            lambda progress: None,
        )
    )
    left.slurm.clock.sleep(1)
    assert lines == [f"cancelling what nobody waits for any more: job {stray}"]
    assert [left.state(job) for job in (noted, stray, other)] == ["RUNNING", "CANCELLED", "RUNNING"]
