"""Everything that can become of a job while the flow watches it, in a time that passes at once."""

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.attempts import Attempt
from flows.job_watch import LEAVE_S, SEEN_S, WAKE_S, JobWatch
from kdgat.cluster import AttemptLedger, AttemptRecord, EndKind, Resources, Site, StopRequest
from kdgat.cluster.child import STOP_GRACE_S
from kdgat.cluster.decision import History
from kdgat.cluster.ending import AttemptEnd, Because
from kdgat.cluster.report import JobFiles
from kdgat.cluster.script import job_name
from kdgat.cluster.slurm import JobQueue
from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory, StageSpec
from tests.support.fake_slurm import KILL_WAIT_S, REQUEUE_S, SLEEPS, FakeClock, FakeSlurm
from tests.support.fake_worker import CHECKPOINT, FakeWorker

FAILED = Failed(kind=FailureKind.NUMERIC, evidence="the loss is not finite")
RESOURCES = Resources(walltime_s=600, memory_mib=1500, cores=1, gpus=0)
SITE: dict[str, Any] = {"name": "here", "scheduler": "slurm", "poll_interval_s": 5, "silence_timeout_s": 20}


class Watched:
    """One attempt and all that is told about it."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path / "run").create(StageSpec(family="nowhere", stage="none", seed=0))
        self.clock = FakeClock()
        self.slurm = FakeSlurm(self.clock)
        self.worker = FakeWorker(self.slurm, self.directory)
        self.log_directory = path / "slurm"
        self.stop = StopRequest()
        self.lines: list[str] = []
        self.progress: list[dict[str, Any]] = []
        self.states: list[tuple[str, str]] = []
        self.took_s = 0.0
        self.options: dict[str, Any] = {}  # of the job's submission

    def submit(self) -> AttemptRecord:
        """Begin an attempt and submit its job."""
        ledger = AttemptLedger(self.directory)
        record = ledger.open(RESOURCES)
        ledger.submitted(record, self.slurm.submit(self.worker, job_name(self.directory.path), **self.options))
        return record

    def run(self, **site: Any) -> AttemptEnd:
        """Submit a job and watch the attempt to its end."""
        self.submit()
        return self.go_on(is_left=False, **site)

    def go_on(self, *, is_left: bool = True, **site: Any) -> AttemptEnd:
        """Watch the attempt that is there to its end, as a command does that was given again."""
        return self._watch(Site(**{**SITE, **site}), is_left=is_left)

    def _watch(self, found: Site, *, is_left: bool) -> AttemptEnd:
        ledger = AttemptLedger(self.directory)
        attempt = Attempt(
            self.directory,
            ledger.records[-1],
            ledger,
            History(RESOURCES),
            self.stop,
            self.lines.append,
            self.progress.append,
            lambda name, message: self.states.append((name, message)),
            is_left,
        )
        began = self.clock.monotonic()
        queue = JobQueue(self.slurm, found.poll_interval_s, self.clock)
        end = JobWatch(found, attempt, self.worker, queue, self.clock, self.log_directory).until_end()
        self.took_s = self.clock.monotonic() - began
        return end

    def print_error(self, *lines: str) -> None:
        """Let the job have printed lines to its standard error."""
        self.log_directory.mkdir()
        (self.log_directory / f"{job_name(self.directory.path)}-1.err").write_text("\n".join(lines))

    def after(self, seconds: float, action: Callable[[], object]) -> "Watched":
        """Let something happen so long after the beginning."""
        self.clock.after(seconds, action)
        return self

    @property
    def job(self) -> Any:
        return self.slurm.jobs["1"]

    @property
    def told(self) -> list[str]:
        return [name for name, _ in self.states]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


# Before the worker reports.


def test_a_stage_that_finishes_ends_its_job_as_completed(watched: Watched) -> None:
    end = watched.run()
    assert (end.kind, end.job_id, end.node) == (EndKind.FINISHED, "1", "n1")
    assert watched.job.state == "COMPLETED"
    assert watched.states == [("Running", f"job 1 on n1: {RESOURCES.describe()}")]


def test_the_start_is_on_disk_while_it_runs(watched: Watched) -> None:
    seen = []
    for seconds in (2.0, 10.0):
        watched.after(seconds, lambda: seen.extend(AttemptLedger(watched.directory).records))
    watched.run()
    assert [(record.job_id, bool(record.started), record.node) for record in seen] == [
        ("1", False, ""),
        ("1", True, "n1"),
    ]


def test_why_a_job_waits_is_told_once(watched: Watched) -> None:
    watched.slurm.drain()
    watched.after(100, watched.slurm.undrain)
    assert watched.run().kind is EndKind.FINISHED
    assert watched.states[0] == ("SlurmPending", "job 1 waits: PENDING Resources")
    assert watched.told == ["SlurmPending", "Running"]


def test_a_job_that_waits_too_long_waits_on_and_says_so_each_time(watched: Watched) -> None:
    watched.slurm.drain()
    watched.after(290, watched.slurm.undrain)
    assert watched.run(start_timeout_s=120).kind is EndKind.FINISHED
    assert watched.told == ["SlurmPending", EndKind.STILL_PENDING.value, EndKind.STILL_PENDING.value, "Running"]
    assert ["waiting on" in line for line in watched.lines] == [True, True]


def test_a_job_that_waits_too_long_is_given_up_where_the_site_says_so(watched: Watched) -> None:
    watched.slurm.drain()
    end = watched.run(start_timeout_s=120, on_start_timeout="stop")
    assert end.kind is EndKind.STILL_PENDING
    assert "job 1 has been PENDING Resources for 12" in end.message


def test_a_job_that_waits_for_what_never_comes_is_taken_out_of_the_queue(watched: Watched) -> None:
    watched.slurm.drain()
    watched.after(30, lambda: setattr(watched.job, "reason", "PartitionTimeLimit"))
    end = watched.run()
    assert (end.kind, end.job_id) == (EndKind.CANNOT_START, "1")
    assert end.message == "job 1 would wait for ever: PENDING PartitionTimeLimit"
    assert watched.job.state == "CANCELLED"
    assert watched.took_s < 45


def test_a_reason_that_passes_at_once_is_not_taken_for_hopeless(watched: Watched) -> None:
    watched.slurm.drain()
    watched.after(30, lambda: setattr(watched.job, "reason", "InvalidAccount"))  # the controller has just started
    watched.after(34, watched.slurm.undrain)
    assert watched.run().kind is EndKind.FINISHED


def test_a_job_cancelled_in_the_queue_is_cancelled(watched: Watched) -> None:
    watched.slurm.drain()
    watched.after(30, lambda: watched.slurm.cancel("1"))
    end = watched.run()
    assert end.kind is EndKind.CANCELLED
    assert "before its process began" in end.message


def test_a_wish_to_stop_in_the_queue_ends_the_attempt_at_once(watched: Watched) -> None:
    watched.slurm.drain()
    watched.after(30, lambda: watched.stop.set("a test"))
    end = watched.run()
    assert (end.kind, end.message) == (EndKind.PAUSED, "a test, before the job began")
    assert watched.took_s < 30 + LEAVE_S
    assert watched.job.state == "CANCELLED"


@pytest.mark.parametrize(
    ("exit_code", "kind"), [("3:0", EndKind.NOT_STARTED), ("0:9", EndKind.JOB_LOST), ("137:0", EndKind.JOB_LOST)]
)
def test_a_job_that_ends_before_its_worker_reports_shows_what_it_printed(
    watched: Watched, exit_code: str, kind: EndKind
) -> None:
    watched.worker.begins_s = math.inf
    watched.print_error(*map(str, range(9)), "ModuleNotFoundError: No module named 'kdgat'")
    watched.after(5, lambda: watched.job.exit(exit_code))
    end = watched.run()
    assert (end.kind, end.node) == (kind, "n1")
    assert "FAILED" in end.message
    assert end.message.endswith(
        "its error output ends with: 5 | 6 | 7 | 8 | ModuleNotFoundError: No module named 'kdgat'"
    )


@pytest.mark.parametrize("begins_s", [math.inf, 3.0])
def test_a_job_that_cannot_write_its_report_for_its_nodes_sake_is_of_the_environment(
    watched: Watched, begins_s: float
) -> None:
    watched.worker.begins_s = begins_s
    watched.print_error("OSError: [Errno 116] Stale file handle: '/scratch/run'")
    watched.after(20, lambda: watched.job.exit("69:0"))
    end = watched.run()
    assert (end.is_of_environment, end.node) == (True, "n1")
    assert end.message.endswith("Stale file handle: '/scratch/run'")


def test_a_node_that_dies_before_the_worker_reports_is_a_failure_of_the_node(watched: Watched) -> None:
    watched.after(2, lambda: watched.slurm.kill_node("n1"))
    end = watched.run()
    assert (end.kind, end.node) == (EndKind.NODE_FAILURE, "n1")


def test_a_process_that_never_begins_is_given_up_counted_from_the_end_of_the_prologue(watched: Watched) -> None:
    watched.worker.prologue_s, watched.worker.begins_s = 1000, math.inf
    end = watched.run(report_timeout_s=200)
    assert end.kind is EndKind.NOT_STARTED
    assert end.message == "200 s after its prologue its process has not begun"
    assert 1200 < watched.took_s < 1215
    assert watched.job.state == "CANCELLED"


def test_a_prologue_may_take_its_time(watched: Watched) -> None:
    watched.worker.prologue_s = 1000
    assert watched.run().kind is EndKind.FINISHED


def test_a_job_that_slurm_has_forgotten_before_its_worker_reported_did_not_start(watched: Watched) -> None:
    watched.worker.begins_s = math.inf
    watched.after(5, lambda: watched.slurm.forget("1"))
    assert watched.run().kind is EndKind.NOT_STARTED


def test_a_job_queued_again_before_its_worker_reports_is_waited_for(watched: Watched) -> None:
    watched.options["requeue"] = True
    watched.after(2, lambda: watched.slurm.requeue("1"))
    assert watched.run().kind is EndKind.FINISHED
    assert ("SlurmPending", "job 1 waits: PENDING BeginTime") in watched.states
    assert watched.took_s > REQUEUE_S


def test_a_controller_that_is_down_while_the_job_waits_changes_nothing(watched: Watched) -> None:
    watched.after(1, watched.slurm.stop_controller).after(200, watched.slurm.start_controller)
    watched.worker.begins_s = 250
    assert watched.run().kind is EndKind.FINISHED


# While it trains.


def test_what_the_stage_logs_and_how_far_it_is_are_passed_on_once(watched: Watched) -> None:
    def log() -> None:
        with watched.directory.log_path.open("a") as file:
            file.write("epoch 1: loss 0.5\n")
        watched.directory.write_progress({"epoch": 1})

    watched.after(20, log).after(30, log)
    watched.run()
    assert watched.lines == ["epoch 1: loss 0.5"] * 2
    assert watched.progress == [{"epoch": 1}]


def test_the_last_lines_are_passed_on_with_the_end(watched: Watched) -> None:
    def end() -> None:
        watched.directory.log_path.write_text("finished\n")
        watched.worker.end(Finished())

    watched.after(20.05, end)  # the next look is the last one
    watched.run()
    assert watched.lines == ["finished"]


def test_a_controller_that_is_down_while_the_stage_trains_changes_nothing(watched: Watched) -> None:
    watched.after(10, watched.slurm.stop_controller)
    end = watched.run()
    assert end.kind is EndKind.FINISHED
    assert watched.job.state == "COMPLETED"


def test_a_wish_to_stop_gets_a_checkpoint_and_a_completed_job(watched: Watched) -> None:
    watched.after(20, lambda: watched.stop.set("a test"))
    end = watched.run()
    assert (end.kind, end.message, end.checkpoint, end.made_progress) == (EndKind.PAUSED, "SIGUSR1", CHECKPOINT, True)
    assert watched.told == ["Running", "Stopping"]
    assert watched.job.state == "COMPLETED"


def test_a_stage_that_does_not_hear_the_wish_to_stop_is_given_up(watched: Watched) -> None:
    watched.worker.saves_s = watched.worker.trains_s = math.inf
    watched.after(20, lambda: watched.stop.set("a test"))
    end = watched.run()
    assert (end.kind, end.message) == (EndKind.PAUSED, "a test")
    assert STOP_GRACE_S < watched.took_s - 20 < STOP_GRACE_S + LEAVE_S + 1
    assert watched.job.state == "COMPLETING"
    assert watched.told.count("Stopping") == 1


def test_who_insists_does_not_wait_for_a_checkpoint(watched: Watched) -> None:
    watched.worker.saves_s = math.inf
    watched.after(20, lambda: watched.stop.set("a test")).after(22, watched.stop.insist)
    assert watched.run().kind is EndKind.PAUSED
    assert watched.took_s < 22 + LEAVE_S + 1
    assert watched.job.state == "COMPLETING"


def test_a_worker_that_is_silent_for_a_while_and_comes_back_is_left_alone(watched: Watched) -> None:
    watched.after(20, watched.worker.freeze).after(35, watched.worker.thaw)
    assert watched.run().kind is EndKind.FINISHED
    assert watched.told == ["Running"]


def test_a_frozen_worker_is_woken_to_save(watched: Watched) -> None:
    watched.after(20, watched.worker.freeze)
    end = watched.run()
    assert (end.kind, end.checkpoint) == (EndKind.PAUSED, CHECKPOINT)
    assert watched.told == ["Running", EndKind.FROZEN.value]
    assert end.message == "SIGTERM"  # it was the flow that had the job ended: nobody's scancel


def test_a_frozen_worker_that_does_not_wake_is_killed_and_its_node_named(watched: Watched) -> None:
    watched.worker.wakes, watched.worker.trains_s = False, math.inf
    watched.after(20, watched.worker.freeze)
    end = watched.run()
    assert (end.kind, end.node) == (EndKind.FROZEN, "n1")
    assert watched.job.state == "CANCELLED"
    assert 20 + 20 + KILL_WAIT_S <= watched.took_s < 20 + 20 + WAKE_S


def test_a_frozen_worker_that_slurm_cannot_end_is_given_up(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.worker.trains_s = math.inf
    monkeypatch.setattr(watched.slurm, "cancel", lambda *jobs: False)
    watched.after(20, watched.worker.freeze)
    end = watched.run()
    assert (end.kind, end.node) == (EndKind.FROZEN, "n1")
    assert "no sign of life for" in end.message
    assert 20 + 20 + WAKE_S < watched.took_s < 20 + 20 + WAKE_S + LEAVE_S + 3


def test_silence_while_slurm_does_not_answer_ends_nothing(watched: Watched) -> None:
    watched.worker.trains_s = 300
    watched.after(20, watched.worker.freeze).after(20, watched.slurm.stop_controller)
    watched.after(250, watched.slurm.start_controller).after(250, watched.worker.thaw)
    assert watched.run().kind is EndKind.FINISHED
    assert watched.told == ["Running"]


def test_a_job_that_slurm_suspends_is_left_alone_until_it_goes_on(watched: Watched) -> None:
    watched.after(20, lambda: watched.slurm.suspend("1")).after(90, lambda: watched.slurm.resume("1"))
    watched.worker.trains_s = 100
    assert watched.run().kind is EndKind.FINISHED
    assert watched.told == ["Running", *["SlurmSuspended"] * 3]


# Without a connection.


def cut(watched: Watched) -> None:
    watched.worker.connects = False


def mend(watched: Watched) -> None:
    watched.worker.connects = True


def test_a_lost_connection_is_no_end(watched: Watched) -> None:
    watched.after(20, lambda: cut(watched)).after(50, lambda: mend(watched))
    end = watched.run()
    assert (end.kind, watched.told) == (EndKind.FINISHED, ["Running"])
    assert watched.took_s < 70


def test_a_report_without_a_connection_is_read_from_its_file(watched: Watched) -> None:
    watched.after(20, lambda: cut(watched))
    end = watched.run()
    assert (end.kind, end.peak_memory_mib) == (EndKind.FINISHED, 100)
    assert watched.took_s < 70
    assert watched.job.state == "COMPLETED"


def test_a_job_that_never_connects_is_watched_by_its_files(watched: Watched) -> None:
    watched.worker.connects = False
    assert watched.run().kind is EndKind.FINISHED
    assert watched.states == [("Running", f"job 1 on n1: {RESOURCES.describe()}")]


def test_a_frozen_job_without_a_connection_is_found_by_its_files(watched: Watched) -> None:
    watched.worker.connects, watched.worker.wakes, watched.worker.trains_s = False, False, math.inf
    watched.after(20, watched.worker.freeze)
    assert watched.run().kind is EndKind.FROZEN


def test_a_report_that_is_not_visible_here_yet_is_waited_for(watched: Watched) -> None:
    watched.worker.connects, watched.worker.visible_s = False, 30
    assert watched.run().kind is EndKind.FINISHED


def test_a_report_that_never_becomes_visible_is_lost_in_the_end(watched: Watched) -> None:
    watched.worker.connects, watched.worker.visible_s = False, math.inf
    assert watched.run().kind is EndKind.JOB_LOST
    assert SEEN_S < watched.took_s - 63 < SEEN_S + 40


@pytest.mark.parametrize("seconds", [SEEN_S - 10, 7200, math.inf])
def test_a_filesystem_that_cannot_be_read_for_a_while_ends_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    def stale(files: JobFiles) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    def break_it() -> None:
        found = JobFiles.read_report
        monkeypatch.setattr(JobFiles, "read_report", stale)
        watched.after(seconds, lambda: monkeypatch.setattr(JobFiles, "read_report", found))

    watched.worker.connects, watched.worker.trains_s = False, 150
    watched.after(20, break_it).after(100_000, lambda: watched.stop.detach("SIGTERM"))
    assert watched.run().kind is EndKind.FINISHED
    assert watched.job.state == "COMPLETED"


# Whoever watches leaves, and somebody else goes on.


@pytest.mark.parametrize("seconds", [1.0, 20.0], ids=["while it waits", "while it trains"])
def test_a_job_goes_on_without_who_watches_it_and_is_watched_again(watched: Watched, seconds: float) -> None:
    watched.after(seconds, lambda: watched.stop.detach("SIGHUP"))
    end = watched.run()
    assert (end.kind, end.message) == (EndKind.DETACHED, "SIGHUP: job 1 goes on")
    assert watched.took_s < seconds + 1
    assert AttemptLedger(watched.directory).left_open()
    watched.stop = StopRequest()
    watched.states.clear()
    assert watched.go_on().kind is EndKind.FINISHED
    assert watched.told == ["Running"]
    assert list(watched.slurm.jobs) == ["1"]


@pytest.mark.parametrize("seconds", [0.5, 20.0])
def test_a_job_goes_on_though_who_watches_it_leaves_while_slurm_is_asked(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    ask = watched.slurm.queue

    def leave_meanwhile() -> Any:
        if watched.clock.monotonic() >= 1000 + seconds:
            watched.stop.detach("SIGHUP")
        return ask()

    monkeypatch.setattr(watched.slurm, "queue", leave_meanwhile)
    watched.worker.trains_s = 600
    assert watched.run().kind is EndKind.DETACHED
    assert watched.job.state == "RUNNING"


def test_who_insists_ends_the_job_after_all(watched: Watched) -> None:
    watched.after(20, lambda: (watched.stop.detach("SIGHUP"), watched.stop.insist()))
    assert watched.run().kind is EndKind.PAUSED
    assert watched.job.state in ("COMPLETING", "CANCELLED", "COMPLETED")


def test_a_job_that_ended_while_nobody_watched_has_left_its_report(watched: Watched) -> None:
    watched.worker.connects = False
    watched.submit()
    watched.clock.sleep(3600)
    end = watched.go_on()
    assert (end.kind, end.node, end.peak_memory_mib) == (EndKind.FINISHED, "n1", 100)
    assert watched.took_s < 5


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("end_walltime", EndKind.TIMEOUT),
        ("cancel", EndKind.CANCELLED),
        ("kill_script", EndKind.JOB_LOST),
        ("forget", EndKind.JOB_LOST),
    ],
)
def test_a_job_that_died_while_nobody_watched_gets_its_end_from_slurm(
    watched: Watched, fault: str, kind: EndKind
) -> None:
    watched.worker.saves_s = watched.worker.trains_s = math.inf
    watched.submit()
    if fault == "forget":
        watched.after(19, lambda: watched.slurm.kill_script("1"))
    watched.after(20, lambda: getattr(watched.slurm, fault)("1"))
    watched.clock.sleep(3600)
    assert watched.go_on().kind is kind


def test_what_was_saved_before_the_command_that_watches_is_progress_of_its_attempt(watched: Watched) -> None:
    path = watched.directory.path / CHECKPOINT
    path.parent.mkdir()
    path.touch()
    os.utime(path, (4e9, 4e9))  # by an earlier attempt; the file server's clock is years ahead
    ledger = AttemptLedger(watched.directory)
    ledger.abandon(ledger.open(RESOURCES), "FlowProcessLost", "a command was killed", Because.FILES)
    watched.worker.saves_s = watched.worker.trains_s = math.inf
    watched.submit()
    watched.after(20, lambda: watched.slurm.kill_script("1"))
    watched.clock.sleep(60)
    assert not watched.go_on().made_progress
    path.rename(path.with_name("checkpoint-00000050.pt"))
    assert watched.go_on().made_progress


def test_a_number_that_was_ours_once_is_left_alone(watched: Watched) -> None:
    record = AttemptLedger(watched.directory).open(RESOURCES)
    ledger = AttemptLedger(watched.directory)
    stranger = watched.slurm.submit(SLEEPS, "of somebody else")
    ledger.submitted(ledger.records[record.number - 1], stranger)
    watched.clock.sleep(1)
    end = watched.go_on()
    assert (end.kind, watched.slurm.status(stranger).state) == (EndKind.NOT_STARTED, "RUNNING")


# A signal that Slurm sends, with time to save.


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("end_walltime", EndKind.PAUSED, "SIGTERM (TIMEOUT TimeLimit)"),
        ("cancel", EndKind.CANCELLED, "SIGTERM (CANCELLED)"),
        ("preempt", EndKind.PREEMPTED, "SIGTERM (PREEMPTED)"),
    ],
)
@pytest.mark.parametrize("connects", [True, False])
def test_a_stage_that_saves_while_slurm_ends_its_job_has_paused_and_slurm_says_why(
    watched: Watched, fault: str, kind: EndKind, message: str, connects: bool
) -> None:
    watched.worker.connects = connects
    watched.after(20, lambda: getattr(watched.slurm, fault)("1"))
    end = watched.run()
    assert (end.kind, end.message, end.checkpoint) == (kind, message, CHECKPOINT)


def test_a_signal_after_a_wish_to_stop_is_not_asked_about(watched: Watched) -> None:
    watched.worker.saves_s = 5
    watched.after(20, lambda: watched.slurm.cancel("1")).after(22, lambda: watched.stop.set("a test"))
    end = watched.run()
    assert (end.kind, end.message) == (EndKind.PAUSED, "SIGTERM")


def test_a_signal_by_hand_to_a_job_that_goes_on_is_not_slurms(watched: Watched) -> None:
    watched.after(20, lambda: watched.worker.signal(watched.job, "TERM"))
    end = watched.run()
    assert (end.kind, end.message) == (EndKind.PAUSED, "SIGTERM")


def test_a_signal_before_training_loses_nothing(watched: Watched) -> None:
    watched.after(20, lambda: watched.worker.end(None, stop_reason="SIGTERM"))
    end = watched.run()
    assert (end.kind, end.message) == (EndKind.PAUSED, "SIGTERM before training began")


# The job is gone, and left no report.


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("end_walltime", EndKind.TIMEOUT),
        ("cancel", EndKind.CANCELLED),
        ("preempt", EndKind.PREEMPTED),
        ("kill_script", EndKind.JOB_LOST),
    ],
)
@pytest.mark.parametrize("connects", [True, False])
def test_a_job_that_is_lost_gets_its_end_from_slurm(
    watched: Watched, fault: str, kind: EndKind, connects: bool
) -> None:
    watched.worker.saves_s, watched.worker.connects = math.inf, connects
    watched.worker.trains_s = math.inf
    watched.after(20, lambda: getattr(watched.slurm, fault)("1"))
    end = watched.run()
    assert (end.kind, end.checkpoint) == (kind, "")
    assert "it left no report; Slurm says" in end.message


def test_a_job_that_slurm_queues_again_goes_on_when_it_begins_again(watched: Watched) -> None:
    watched.options["requeue"] = True
    watched.after(20, lambda: watched.slurm.requeue("1"))
    assert watched.run().kind is EndKind.FINISHED
    assert watched.took_s > REQUEUE_S


def test_a_verdict_that_takes_slurm_a_while_is_waited_for(watched: Watched) -> None:
    """The worker dies at once, and what its job had started keeps the job completing."""
    watched.slurm.notices_s = 2.0
    watched.after(20, lambda: watched.slurm.kill_script("1"))
    end = watched.run()
    assert end.kind is EndKind.JOB_LOST
    assert "FAILED JobLaunchFailure exit code 0:9" in end.message


def test_a_job_that_is_still_completing_is_waited_for_to_tell_a_cancellation(watched: Watched) -> None:
    def cancel() -> None:
        watched.worker.saves_s = math.inf  # nobody in the job listens
        watched.slurm.cancel("1")
        watched.worker.signal(watched.job, "KILL")

    watched.after(20, cancel)
    end = watched.run()
    assert end.kind is EndKind.CANCELLED
    assert watched.took_s > 20 + KILL_WAIT_S


def test_a_dead_node_is_left_out(watched: Watched) -> None:
    watched.after(20, lambda: watched.slurm.kill_node("n1"))
    end = watched.run()
    assert (end.kind, end.node) == (EndKind.NODE_FAILURE, "n1")


def test_a_job_lost_while_the_controller_is_down_is_lost_when_it_answers(watched: Watched) -> None:
    watched.after(10, watched.slurm.stop_controller).after(20, lambda: watched.slurm.kill_script("1"))
    watched.after(600, watched.slurm.start_controller)
    end = watched.run()
    assert (end.kind, end.node) == (EndKind.JOB_LOST, "n1")
    assert 600 < watched.took_s < 640


def test_a_job_that_slurm_has_forgotten_is_lost(watched: Watched) -> None:
    def forget() -> None:
        watched.worker.signal(watched.job, "KILL")
        watched.slurm.forget("1")

    watched.after(20, forget)
    assert watched.run().kind is EndKind.JOB_LOST


def test_a_worker_lost_after_its_stage_had_finished_has_finished(watched: Watched) -> None:
    watched.after(20, lambda: watched.directory.write_outcome(Finished(metrics={"f1": 0.5})))
    watched.after(21, lambda: watched.slurm.kill_script("1"))
    end = watched.run()
    assert (end.kind, end.message) == (EndKind.FINISHED, "f1 0.5")


def test_a_worker_lost_after_a_wish_to_stop_has_paused_at_its_last_checkpoint(watched: Watched) -> None:
    def write_checkpoint() -> None:
        path = watched.directory.path / CHECKPOINT
        path.parent.mkdir(exist_ok=True)
        path.touch()

    watched.worker.saves_s = math.inf
    watched.after(15, write_checkpoint)
    watched.after(20, lambda: watched.stop.set("a test")).after(25, lambda: watched.slurm.kill_script("1"))
    end = watched.run()
    assert (end.kind, end.checkpoint, end.made_progress) == (EndKind.PAUSED, CHECKPOINT, True)


def test_memory_over_the_jobs_limit_is_told_from_a_loss(watched: Watched) -> None:
    watched.after(20, lambda: watched.job.out_of_memory())
    assert watched.run().kind is EndKind.HOST_OOM


# What the worker reports.


@pytest.mark.parametrize(
    ("outcome", "reported", "kind", "message"),
    [
        (Finished(metrics={"f1": 0.5}), {}, EndKind.FINISHED, "f1 0.5"),
        (FAILED, {}, EndKind.FAILED, "the loss is not finite"),
        (Paused(checkpoint="", reason="no time"), {}, EndKind.PAUSED, "no time"),
        (None, {}, EndKind.PROCESS_KILLED, "the stage was killed by signal 9"),
        (None, {"was_oom_killed": True}, EndKind.HOST_OOM, "of which it had 1500M"),
        (FAILED, {"was_oom_killed": True}, EndKind.HOST_OOM, "the kernel killed the stage for memory"),
        (None, {"was_oom_killed": True, "stop_reason": "SIGTERM"}, EndKind.HOST_OOM, "for memory"),
        (Finished(), {"was_oom_killed": True}, EndKind.FINISHED, "finished"),
        (Paused(checkpoint="", reason="no time"), {"was_oom_killed": True}, EndKind.PAUSED, "no time"),
        (None, {"stalled": True}, EndKind.FROZEN, "used no processor time for 600 s"),
        (Paused(checkpoint="", reason="SIGTERM"), {"stalled": True}, EndKind.FROZEN, "used no processor time"),
        (Finished(), {"stalled": True}, EndKind.FINISHED, "finished"),
    ],
)
def test_what_the_worker_reports_names_the_end(
    watched: Watched, outcome: Any, reported: dict[str, Any], kind: EndKind, message: str
) -> None:
    watched.worker.outcome, watched.worker.reported = outcome, reported
    end = watched.run(stall_timeout_s=600)
    assert end.kind is kind
    assert message in end.message
    assert (end.job_id, end.node, end.peak_memory_mib) == ("1", "n1", 100)
    assert watched.job.state == "COMPLETED"


def test_a_job_that_leaves_slowly_is_not_waited_for_for_long(watched: Watched) -> None:
    watched.worker.leaves_s = 60
    assert watched.run().kind is EndKind.FINISHED
    assert watched.job.state == "COMPLETING"
    assert watched.took_s < 65 + 2 * LEAVE_S


def test_an_outcome_that_is_not_visible_here_yet_is_waited_for(watched: Watched) -> None:
    watched.worker.visible_s = 30
    assert watched.run().kind is EndKind.FINISHED
    assert watched.directory.is_finished()


def test_an_outcome_that_never_becomes_visible_is_believed_in_the_end(watched: Watched) -> None:
    watched.worker.visible_s = math.inf
    assert watched.run().kind is EndKind.FINISHED
    assert SEEN_S < watched.took_s - 63 < SEEN_S + 10


# What squeue does not list.


def test_a_job_that_only_scontrol_knows_is_believed_and_nothing_is_left_in_the_queue(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched.slurm, "queue", dict)  # a site's cache
    watched.slurm.drain()
    watched.after(300, watched.slurm.undrain)
    assert watched.run().kind is EndKind.FINISHED
    assert watched.told == ["SlurmPending", "Running"]


def test_a_job_that_only_scontrol_knows_is_cancelled_with_its_attempt(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched.slurm, "queue", dict)
    watched.worker.begins_s = math.inf
    assert watched.run(report_timeout_s=100).kind is EndKind.NOT_STARTED
    assert watched.job.state == "CANCELLED"


def test_the_job_of_another_user_is_left_to_them_in_a_sentence(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched.slurm, "queue", dict)
    watched.slurm.user = 4711
    watched.submit()
    end = watched.go_on()
    assert (end.kind, end.because) == (EndKind.DETACHED, None)
    assert end.message == "job 1 goes on as one of user 4711, who alone can watch or end it"
    assert watched.job.state == "RUNNING"


def test_a_job_that_slurm_does_not_know_is_watched_on_while_it_gives_signs_of_life(watched: Watched) -> None:
    watched.worker.connects, watched.worker.trains_s = False, 1000
    job = []
    watched.after(20, lambda: job.append(watched.slurm.jobs.pop("1")))
    watched.after(900, lambda: watched.slurm.jobs.update({"1": job[0]}))  # the controller has its state again
    assert watched.run().kind is EndKind.FINISHED


@pytest.mark.parametrize("state", ["REVOKED", "SPECIAL_EXIT", "LAUNCH_FAILED", "EXPEDITING"])
def test_a_job_in_a_state_that_is_no_end_is_watched_on(watched: Watched, state: str) -> None:
    watched.worker.connects, watched.worker.trains_s = False, 1000
    watched.after(20, lambda: setattr(watched.job, "state", state))
    watched.after(900, lambda: setattr(watched.job, "state", "RUNNING"))
    assert watched.run().kind is EndKind.FINISHED


def test_a_job_submitted_under_another_path_of_the_directory_is_found_by_its_number(
    watched: Watched, tmp_path: Path
) -> None:
    record = watched.submit()
    status = watched.slurm.jobs[record.job_id]
    status.name = f"kdgat-run-{0:08x}"  # by an older kdgat, which followed no links
    watched.log_directory.mkdir()
    (tmp_path / "link").symlink_to(watched.log_directory)
    status.output = str(tmp_path / "link" / "kdgat-run-1.out")
    assert watched.go_on().kind is EndKind.FINISHED
    watched.clock.sleep(60)
    assert watched.job.state == "COMPLETED"


@pytest.mark.parametrize("seconds", [200.0, 400.0])
def test_files_alone_may_be_silent_for_minutes_where_no_site_says_otherwise(watched: Watched, seconds: float) -> None:
    watched.worker.connects, watched.worker.trains_s = False, 1000
    watched.after(50, watched.worker.freeze).after(50 + seconds, watched.worker.thaw)
    watched.submit()
    end = watched._watch(Site(name="here", scheduler="slurm"), is_left=False)
    assert (end.kind is EndKind.FINISHED) == (seconds < 300)
