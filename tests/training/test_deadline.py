"""The end of the job is found, and the margin before it follows the run's own times."""

import math
import os
import stat
import time
from datetime import datetime

import pytest

from kdgat.training import Deadline
from kdgat.training.deadline import NUM_RECENT, find_end_time, parse_end_time


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Install an executable that stands for squeue and prints what the test says."""

    def install(script: str) -> None:
        path = tmp_path / "squeue"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_no_slurm_job_means_no_deadline():
    deadline = Deadline.from_environment(environment={})
    assert math.isinf(deadline.end_time)
    assert not deadline.reached()


def test_end_time_comes_from_the_environment_first(squeue):
    squeue("exit 1")
    assert find_end_time({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000000"}) == (1.7e9, "SLURM_JOB_END_TIME")


@pytest.mark.parametrize("behind_s", [-86400.0, 600.0])  # longer ago than any process of tests began
def test_a_node_whose_clock_is_behind_has_less_time(behind_s):
    now = time.time()
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(now + 3600.0), "SLURM_TASK_PID": str(os.getpid())}
    found = Deadline.from_environment(environment={**job, "SLURM_JOB_START_TIME": str(now + behind_s)})
    without = Deadline.from_environment(environment=job)
    assert (without.remaining_s - found.remaining_s >= 600.0) == (behind_s > 0)
    assert found.remaining_s <= without.remaining_s + 1.0  # the clock is looked at twice


def test_end_time_comes_from_squeue_for_this_job(squeue):
    squeue('[ "$*" = "-h -j 7 -o %e" ] && echo 2026-03-01T12:30:00')
    expected = datetime(2026, 3, 1, 12, 30).timestamp()
    assert find_end_time({"SLURM_JOB_ID": "7"}) == (expected, "squeue")
    assert find_end_time({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "soon"}) == (expected, "squeue")


def test_the_format_of_times_is_the_one_that_is_understood(squeue, monkeypatch):
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    squeue('[ "$SLURM_TIME_FORMAT" = standard ] && echo 2026-03-01T12:30:00 || echo Tomorr 12:30')
    assert find_end_time({"SLURM_JOB_ID": "7"}) == (datetime(2026, 3, 1, 12, 30).timestamp(), "squeue")


def test_squeue_that_fails_leaves_signals_only(squeue, caplog):
    squeue("echo slurm_load_jobs error >&2; exit 1")
    assert find_end_time({"SLURM_JOB_ID": "7"}) == (math.inf, "unknown")
    assert "only signals will pause this stage" in caplog.text


@pytest.mark.parametrize("text", ["N/A\n", "NONE", "Welcome to the cluster\n\nN/A\n"])
def test_job_without_limit_has_no_deadline(text):
    assert parse_end_time(text) == math.inf


@pytest.mark.parametrize("answer", ["", "slurm is busy", "2026-11-2", "\\377\\376N\\000/\\000A\\000", "17|N/A"])
def test_an_end_that_cannot_be_understood_moves_no_deadline(squeue, monkeypatch, answer):
    squeue(f"printf '{answer}\\n'")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    deadline = Deadline.from_environment(margin_floor_s=20.0)
    deadline.end_time = time.time() + 10.0
    assert deadline.reached()


def test_an_end_is_found_below_the_greeting_of_a_wrapper():
    assert parse_end_time("Welcome to node 17\n2026-11-27T12:00:00\n") == parse_end_time("2026-11-27T12:00:00")


def test_margin_grows_with_the_longest_checkpoint_and_reached_counts_one_step():
    now = 1000.0
    deadline = Deadline(end_time=1100.0, margin_floor_s=20.0, clock=lambda: now)
    deadline.observe_checkpoint(15.0)
    deadline.observe_checkpoint(3.0)
    deadline.observe_step(10.0)
    assert deadline.margin_s == 50.0
    now = 1039.0
    assert not deadline.reached()
    now = 1041.0
    assert deadline.reached()
    assert "59.0 s remain" in deadline.describe()
    assert "50.0 s to save and leave (checkpoint 15.00 s) + 10.00 s for a step" in deadline.describe()


def test_one_stalled_checkpoint_is_forgotten_after_some_that_were_not():
    deadline = Deadline(end_time=14_400.0, clock=lambda: 0.0)
    deadline.observe_checkpoint(2400.0)
    assert deadline.margin_s == 4820.0
    for _ in range(NUM_RECENT):
        deadline.observe_checkpoint(1.0)
    assert deadline.margin_s == 22.0


def test_what_the_next_attempt_is_told_of_is_the_usual_checkpoint():
    deadline = Deadline()
    for seconds in (1.0, 2400.0, 2.0):
        deadline.observe_checkpoint(seconds)
    assert deadline.checkpoint_s == 2400.0
    assert deadline.typical_checkpoint_s() == 2.0


@pytest.mark.parametrize("walltime_s", [60.0, 3600.0])
def test_restored_times_leave_room_for_steps_and_give_way_to_own_ones(walltime_s):
    deadline = Deadline(end_time=walltime_s, clock=lambda: 0.0)
    deadline.restore(2400.0)
    assert not deadline.too_late_to_begin()
    deadline.observe_step(1.0)
    assert not deadline.reached()
    deadline.observe_checkpoint(0.5)
    assert deadline.margin_s == 21.0


def test_an_attempt_that_cannot_even_leave_in_time_does_not_begin():
    assert Deadline(end_time=19.0, clock=lambda: 0.0).too_late_to_begin()
    barely = Deadline(end_time=21.0, clock=lambda: 0.0)
    barely.restore(2400.0)
    assert not barely.too_late_to_begin()


def test_slurm_is_asked_again_before_a_stage_leaves(squeue, tmp_path):
    now = time.time()
    end = datetime.fromtimestamp(int(now) + 600).isoformat()
    squeue(f"echo asked >> {tmp_path}/calls; echo {end}")
    deadline = Deadline.from_environment(environment={"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(now + 100.0)})
    assert not deadline.reached()
    assert not (tmp_path / "calls").exists(), "no load while there is time"
    deadline.observe_step(200.0)
    assert not deadline.reached()
    assert deadline.end_time == int(now) + 600
    deadline.observe_step(700.0)
    assert deadline.reached()


@pytest.mark.parametrize("script", ["exit 1", "true"])
def test_a_squeue_without_an_answer_moves_no_end(squeue, script):
    squeue(script)
    end = time.time() + 10.0
    deadline = Deadline.from_environment(environment={"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": str(end)})
    assert deadline.reached()
    assert deadline.end_time == end


def test_one_slow_step_fades():
    deadline = Deadline()
    deadline.observe_step(10.0)
    for _ in range(500):
        deadline.observe_step(0.05)
    assert deadline.step_s < 0.2
