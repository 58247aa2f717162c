"""Which job an attempt gets: the one that a command which is gone has left, or a new one; in no real time."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows import slurm_attempts
from flows.dask_jobs import DaskJobs
from flows.slurm_attempts import MOST_LOOKS, ORPHANED
from kdgat.cluster import AttemptLedger, EndKind, decision
from kdgat.cluster.report import JobFiles
from kdgat.stage import Finished, Paused
from tests.flows.places import LARGER, RESOURCES, Place
from tests.support.fake_slurm import SLEEPS
from tests.support.fake_worker import FakeWorker


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_job_that_trains_is_taken_over_under_its_number(place: Place) -> None:
    conclusion = place.leave(20)
    reason = "SIGTERM: job 1 goes on; the same command watches it again"
    assert conclusion.outcome == Paused(checkpoint="", reason=reason)
    assert place.states == ["RUNNING"]
    assert isinstance(place.run().outcome, Finished)
    assert place.states == ["COMPLETED"]
    assert [(record.number, record.job_id, record.end) for record in place.records] == [(1, "1", "Completed")]
    assert "watching job 1, which was submitted before" in place.lines


def test_a_job_that_waits_keeps_its_place(place: Place) -> None:
    place.slurm.drain()
    place.leave(20)
    place.slurm.clock.after(60, place.slurm.undrain)
    assert isinstance(place.run(LARGER).outcome, Finished)
    assert len(place.jobs.submitted) == 1
    assert place.records[0].resources == RESOURCES


def test_a_job_whose_number_was_not_noted_is_found_by_its_name(place: Place) -> None:
    AttemptLedger(place.directory).open(RESOURCES)
    worker = FakeWorker(place.slurm, place.directory)
    other = place.slurm.submit(SLEEPS, "of somebody else")
    place.jobs.workers[place.slurm.submit(worker, place.name)] = worker
    assert isinstance(place.run().outcome, Finished)
    assert place.jobs.submitted == []
    assert [(record.number, record.job_id) for record in place.records] == [(1, "2")]
    assert place.slurm.status(other).state == "RUNNING"


def test_an_attempt_that_was_not_submitted_is_submitted_now(place: Place) -> None:
    AttemptLedger(place.directory).open(RESOURCES)
    assert isinstance(place.run().outcome, Finished)
    assert [(record.number, record.job_id) for record in place.records] == [(1, "1")]


@pytest.mark.parametrize("seconds", [30, 600], ids=["while the job trains", "when it is over"])
def test_nothing_is_submitted_for_an_attempt_that_may_have_a_job_until_slurm_answers(
    place: Place, seconds: float
) -> None:
    AttemptLedger(place.directory).open(RESOURCES)
    worker = FakeWorker(place.slurm, place.directory)
    place.jobs.workers[place.slurm.submit(worker, place.name)] = worker
    place.slurm.stop_controller()
    place.slurm.clock.after(seconds, place.slurm.start_controller)
    assert isinstance(place.run().outcome, Finished)
    assert place.jobs.submitted == []
    assert [record.job_id for record in place.records] == ["1"]


def test_sbatch_that_gave_up_on_an_answer_that_came_submits_nothing_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "FIRST_DELAY_S", 0.0)
    place.jobs.answers = False
    assert isinstance(place.run().outcome, Finished)
    assert [record.end for record in place.records] == [EndKind.UNREACHABLE.value, "Completed"]
    assert [record.job_id for record in place.records] == ["", "1"]
    assert place.states == ["COMPLETED"]


def test_a_job_that_ended_meanwhile_is_read_and_what_follows_is_decided_as_ever(place: Place) -> None:
    place.leave(20)
    worker = place.jobs.workers["1"]
    worker.connects = False
    worker.end(Paused(checkpoint="checkpoints/1.pt", reason="deadline"), stop_reason="")
    place.slurm.clock.sleep(3600)
    assert isinstance(place.run().outcome, Finished)
    assert [record.end for record in place.records] == ["Paused", "Completed"]
    assert place.states == ["COMPLETED", "COMPLETED"]


def test_a_stage_that_finished_while_nobody_watched_has_its_attempt_closed_and_none_is_begun(place: Place) -> None:
    place.leave(20)
    worker = place.jobs.workers["1"]
    worker.connects = False
    place.slurm.clock.sleep(3600)
    assert place.directory.is_finished()
    assert isinstance(place.run().outcome, Finished)
    assert [(record.job_id, record.end, record.node) for record in place.records] == [("1", "Completed", "n1")]
    assert place.run().attempts == 0
    assert len(place.records) == 1


def test_who_asks_for_more_by_hand_than_was_shown_to_be_needed_gets_it(place: Place) -> None:
    place.leave(20)
    place.slurm.jobs["1"].out_of_memory()
    place.slurm.clock.sleep(10)
    place.run(LARGER)
    assert [record.resources.memory_mib for record in place.records if record.resources] == [1500, 4000]


def test_a_stop_ends_the_job_of_a_command_that_is_gone_as_well(place: Place) -> None:
    place.leave(20)
    place.stop.set("SIGINT")
    assert isinstance(place.run().outcome, Paused)
    assert place.states == ["COMPLETED"]
    assert AttemptLedger(place.directory).left_open() == []


def test_files_of_earlier_jobs_are_removed_when_the_next_is_submitted(place: Place) -> None:
    files = JobFiles(place.directory, "7")
    files.begin("n1")
    assert isinstance(place.run().outcome, Finished)
    assert not files.alive_path.exists()
    assert [path.name for path in place.directory.path.glob("report-*")] == ["report-1.json"]


@pytest.mark.parametrize("refusals", [MOST_LOOKS, MOST_LOOKS + 1])
def test_what_files_refuse_before_a_job_is_submitted_is_asked_again_before_it_counts_as_an_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    left = iter(range(refusals))

    def refuse(directory: object) -> None:
        if next(left, None) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "alive-1")

    monkeypatch.setattr(slurm_attempts, "remove_job_files", refuse)
    assert isinstance(place.run().outcome, Finished)
    ends = [record.end for record in place.records]
    assert ends == (["Completed"] if refusals == MOST_LOOKS else ["StageFailed", "Completed"])


def test_a_refused_job_ends_with_the_words_of_slurm(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.slurm, "nodes", ())
    place.run()
    assert place.records[0].end == EndKind.REFUSED.value
    assert "Requested node configuration is not available" in place.records[0].message


def test_the_job_of_a_stage_that_nobody_asks_for_is_cancelled_and_it_is_said(place: Place) -> None:
    place.leave(20)
    assert place.attempts.cancel_orphan(place.directory) == "nobody asks for run any more: cancelled job 1"
    assert place.states == ["COMPLETING"]
    assert [record.end for record in place.records] == [ORPHANED]


def test_a_damaged_outcome_keeps_nobody_from_reading_how_slurm_ended_the_job(place: Place) -> None:
    place.slurm.clock.after(20, lambda: place.directory.outcome_path.write_text("{"))
    place.slurm.clock.after(21, lambda: place.slurm.kill_script("1"))
    place.slurm.clock.after(24, place.directory.outcome_path.unlink)
    assert isinstance(place.run().outcome, Finished)
    assert [record.end for record in place.records] == ["SlurmJobLost", "Completed"]


def test_an_orphan_is_left_to_the_next_command_where_slurm_does_not_answer(place: Place) -> None:
    place.leave(20)
    place.slurm.stop_controller()
    place.slurm.clock.sleep(10)
    assert "Slurm does not answer" in place.attempts.cancel_orphan(place.directory)
    assert len(AttemptLedger(place.directory).left_open()) == 1


def test_a_folder_of_output_that_cannot_be_seen_for_a_moment_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = DaskJobs(tmp_path, {})
    monkeypatch.setattr(jobs, "open", lambda: (SimpleNamespace(scheduler_address="tls://127.0.0.1:1"), None))
    monkeypatch.setattr(os.path, "exists", lambda path: False)  # as it answers to a stale handle
    arguments = {"job_name": "a", "cores": 1, "memory": "1GB", "log_directory": str(tmp_path)}
    with pytest.raises(ConnectionError, match=f"{tmp_path} could not be seen"):  # nothing is submitted, and later is
        jobs.submit(arguments)
