import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import waiting
from flows.waiting import FIRST_QUESTION_S, OWN_PAUSE_S, REPORT_TIMEOUT_S, Heartbeat, Queue
from kdgat.cluster.site import Site

SITE = Site(name="here", scheduler="slurm", poll_interval_s=5, start_timeout_s=60)


class Clock:
    """The monotonic clock, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


@pytest.fixture
def slurm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a `scontrol` into PATH that answers as told: these tests are about when it is asked, not about Slurm."""
    program = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def answer(state: str, reason: str) -> None:
        program.write_text(f"#!/bin/sh\necho 'JobId=7 JobState={state} Reason={reason} NodeList=n1 ExitCode=0:0'\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    answer("PENDING", "Priority")
    return answer


@pytest.fixture
def queue(clock: Clock, slurm_says: Any) -> Queue:
    queue = Queue(SITE)
    queue.begin()
    return queue


def test_before_a_job_is_submitted_nobody_is_asked(clock: Clock, slurm_says: Any) -> None:
    queue = Queue(SITE)
    clock.now += 1e6
    assert queue.ask("") is None
    assert queue.overdue_s() == 0.0
    assert not queue.is_silent()


def test_slurm_is_asked_soon_and_then_seldom(queue: Queue, clock: Clock) -> None:
    assert queue.ask("7") is None
    clock.now += FIRST_QUESTION_S
    status = queue.ask("7")
    assert status is not None
    assert (status.state, status.reason) == ("PENDING", "Priority")
    for _ in range(2):
        clock.now += SITE.poll_interval_s - 0.1
        assert queue.ask("7") is None
        clock.now += 0.1
        assert queue.ask("7") is not None


def test_a_change_is_told_once(queue: Queue, clock: Clock, slurm_says: Callable[[str, str], None]) -> None:
    changes = []
    for reason in ("Priority", "Priority", "Resources", "Resources"):
        slurm_says("PENDING", reason)
        clock.now += SITE.poll_interval_s
        queue.ask("7")
        changes.append(queue.has_changed())
    assert changes == [True, False, True, False]


def test_a_job_is_overdue_once_for_each_start_timeout_that_passes(queue: Queue, clock: Clock) -> None:
    clock.now += 59.0
    assert queue.overdue_s() == 0.0
    clock.now += 2.0
    assert queue.overdue_s() == 61.0
    assert queue.overdue_s() == 0.0
    clock.now += 59.0
    assert queue.overdue_s() == 0.0
    clock.now += 1.0
    assert queue.overdue_s() == 121.0


def test_a_job_that_runs_is_not_overdue_but_may_be_silent(
    queue: Queue, clock: Clock, slurm_says: Callable[[str, str], None]
) -> None:
    clock.now += 50.0
    slurm_says("RUNNING", "None")
    queue.ask("7")
    clock.now += 100.0
    queue.ask("7")
    assert queue.overdue_s() == 0.0
    assert not queue.is_silent()
    clock.now += REPORT_TIMEOUT_S - 100.0
    assert not queue.is_silent()
    clock.now += 1.0
    assert queue.is_silent()


def test_silence_lasts_from_the_last_heartbeat(clock: Clock) -> None:
    heartbeat = Heartbeat()
    assert heartbeat.silence_s(17.0) == 0.0
    for second in range(1, 4):
        clock.now += 1.0
        assert heartbeat.silence_s(17.0) == second
    clock.now += 1.0
    assert heartbeat.silence_s(21.0) == 0.0


def test_the_time_in_which_we_slept_ourselves_is_no_silence(clock: Clock) -> None:
    heartbeat = Heartbeat()
    heartbeat.silence_s(17.0)
    clock.now += 3.0
    assert heartbeat.silence_s(17.0) == 3.0
    clock.now += 3600.0  # a laptop's lid, or a flow that was stopped
    assert heartbeat.silence_s(17.0) == 0.0
    clock.now += OWN_PAUSE_S
    assert heartbeat.silence_s(17.0) == OWN_PAUSE_S
