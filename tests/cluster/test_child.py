import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kdgat.cluster import StopRequest, child
from kdgat.cluster.child import OWN_PAUSE_S, ChildEnd, checkpoint_marker, child_command, read_progress, run_child
from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory

pytestmark = pytest.mark.processes

# What a child of these tests does in place of a stage; DIR is its run directory.
WRITES = "import json, os, signal, sys, time; from pathlib import Path; DIR = Path(sys.argv[1]); "
FINISHES = WRITES + """(DIR / 'outcome.json').write_text('{"status": "finished"}')"""
PAUSES = WRITES + """(DIR / 'outcome.json').write_text('{"status": "paused", "checkpoint": "c", "reason": "USR1"}'); """
FAILS = WRITES + (
    """(DIR / 'outcome.json').write_text('{"status": "failed", "kind": "NUMERIC", "evidence": "loss is nan"}'); """
)
SLEEPS = WRITES + "print('sleeps', flush=True); time.sleep(600)"
LEAVES_ON_TERM = PAUSES + "signal.signal(15, lambda *_: os._exit(75)); print('ready', flush=True); time.sleep(600)"
IGNORES_TERM = WRITES + "signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


Run = Callable[..., ChildEnd]


@pytest.fixture
def run(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(code: str, **arguments: Any) -> ChildEnd:
        command = [sys.executable, "-c", code, str(directory.path)]
        monkeypatch.setattr(child, "child_command", lambda _: command)
        given = {"stop": StopRequest(), "environment": {}, "on_line": lambda line: None, **arguments}
        return run_child(directory, **given)

    return run


def is_gone(pid: int) -> bool:
    """Tell whether a process is gone; one that died but that nobody has reaped yet is."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_finished_stage_reports_its_outcome(run: Run) -> None:
    end = run(FINISHES)
    assert (end.status, end.outcome, end.stalled) == (0, Finished(), False)


def test_a_paused_stage_reports_its_outcome(run: Run) -> None:
    assert run(PAUSES + "sys.exit(75)").outcome == Paused(checkpoint="c", reason="USR1")


def test_a_failed_stage_reports_its_outcome(run: Run) -> None:
    assert run(FAILS + "sys.exit(1)").outcome == Failed(kind=FailureKind.NUMERIC, evidence="loss is nan")


def test_the_status_of_a_pause_counts_without_an_outcome(run: Run) -> None:
    assert run("raise SystemExit(75)").outcome == Paused(checkpoint="", reason="exit status 75")


def test_a_failure_without_an_outcome_shows_what_was_printed_last(run: Run) -> None:
    end = run("for n in range(9): print('line', n)\nraise SystemExit(1)")
    assert end.last_lines == ("line 4", "line 5", "line 6", "line 7", "line 8")
    assert isinstance(end.outcome, Failed)
    assert end.outcome.kind is FailureKind.ERROR
    assert end.outcome.evidence == f"exit status 1 without an outcome: {' | '.join(end.last_lines)}"


def test_a_stage_that_could_write_nothing_says_with_its_status_that_it_is_not_its_fault(run: Run) -> None:
    outcome = run("print('error: Stale file handle'); raise SystemExit(69)").outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.ENVIRONMENT
    assert outcome.evidence == "exit status 69 without an outcome: error: Stale file handle"


def test_an_outcome_that_cannot_be_read_is_not_the_stages_fault(run: Run) -> None:
    outcome = run(WRITES + "(DIR / 'outcome.json').symlink_to('/proc/self/mem'); sys.exit(1)").outcome
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.ENVIRONMENT
    assert "Input/output error" in outcome.evidence


def test_a_silent_failure_says_so(run: Run) -> None:
    outcome = run("import os; os._exit(3)").outcome
    assert isinstance(outcome, Failed)
    assert outcome.evidence == "exit status 3 without an outcome: it printed nothing"


def test_a_good_status_without_an_outcome_is_a_failure(run: Run) -> None:
    outcome = run("print('bye')").outcome
    assert isinstance(outcome, Failed)
    assert outcome.evidence == "exit status 0 without an outcome: bye"


def test_a_killed_stage_has_no_outcome(run: Run) -> None:
    end = run("import os; os.kill(os.getpid(), 9)")
    assert (end.status, end.outcome) == (-signal.SIGKILL, None)


KILLED = "sys.stdout.flush(); os.kill(os.getpid(), 15); time.sleep(600)"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(f"{FINISHES}; {KILLED}", Finished()), (PAUSES + KILLED, Paused(checkpoint="c", reason="USR1"))],
    ids=["finished", "paused"],
)
def test_a_stage_that_is_killed_after_it_said_how_it_ended_has_ended_so(
    run: Run, code: str, outcome: Finished | Paused
) -> None:
    end = run(code)
    assert (end.status, end.outcome) == (-signal.SIGTERM, outcome)


def test_a_failure_does_not_hide_the_signal_that_ended_the_stage(run: Run) -> None:
    assert run(FAILS + KILLED).outcome is None


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "raise SystemExit(75)", "import os; os.kill(os.getpid(), 9)"])
def test_the_outcome_of_an_earlier_attempt_is_not_taken_for_this_ones(
    run: Run, directory: RunDirectory, code: str
) -> None:
    run(FAILS + "sys.exit(1)")
    outcome = run(code).outcome
    assert directory.read_outcome() == Failed(kind=FailureKind.NUMERIC, evidence="loss is nan")
    assert outcome is None or "nan" not in str(outcome)


def test_a_stage_that_had_finished_before_is_finished_again(run: Run) -> None:
    run(FINISHES)
    assert run("pass").outcome == Finished()


def test_lines_arrive_while_the_stage_runs_and_empty_ones_do_not(run: Run) -> None:
    lines: list[str] = []
    stop = StopRequest()

    def on_line(line: str) -> None:
        lines.append(line)
        stop.set("the line arrived")

    end = run("import time; print(); print('\\u00e9poque 1', flush=True); time.sleep(600)", on_line=on_line, stop=stop)
    assert lines == ["\u00e9poque 1"]
    assert end.status == -signal.SIGTERM


def test_new_progress_is_passed_on(run: Run) -> None:
    seen: list[dict[str, Any]] = []
    stop = StopRequest()

    def on_progress(progress: dict[str, Any]) -> None:
        seen.append(progress)
        stop.set("progress arrived")

    run(
        WRITES + "(DIR / 'progress.json').write_text('{\"epoch\": 3}'); time.sleep(600)",
        on_progress=on_progress,
        stop=stop,
    )
    assert seen == [{"epoch": 3}]


def test_the_last_progress_is_passed_on_however_soon_the_end_follows(run: Run) -> None:
    seen: list[dict[str, Any]] = []
    run(
        WRITES + "time.sleep(0.3); (DIR / 'progress.json').write_text('{\"epoch\": 3}')",
        on_progress=seen.append,
    )
    assert seen == [{"epoch": 3}]


def test_progress_that_nobody_wants_is_not_read(run: Run, directory: RunDirectory) -> None:
    os.mkfifo(directory.progress_path)  # whoever reads it waits for ever
    assert run("import time; time.sleep(0.5)").status == 0


def test_the_environment_is_added_to_that_of_this_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDGAT_OF_PARENT", "1")
    code = "import os; print(os.environ['KDGAT_OF_PARENT'], os.environ['OF_CALLER'])"
    assert run(code, environment={"OF_CALLER": "2"}).last_lines == ("1 2",)


def test_a_wish_to_stop_lets_the_stage_save(run: Run) -> None:
    stop = StopRequest()
    end = run(LEAVES_ON_TERM, stop=stop, on_line=lambda line: stop.set("a test"))
    assert end.status == 75
    assert end.outcome == Paused(checkpoint="c", reason="USR1")


def test_a_stage_that_ignores_the_wish_is_killed_after_its_time_to_save(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "STOP_GRACE_S", 0.2)
    stop = StopRequest()
    assert run(IGNORES_TERM, stop=stop, on_line=lambda line: stop.set("a test")).status == -signal.SIGKILL


def test_who_insists_does_not_wait_for_a_checkpoint(run: Run) -> None:
    stop = StopRequest()

    def insist(line: str) -> None:
        stop.set("a test")
        stop.insist()

    assert run(IGNORES_TERM, stop=stop, on_line=insist).status == -signal.SIGKILL


def test_nothing_of_a_stage_outlives_it(run: Run) -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    (line,) = run(code).last_lines
    give_up_at = time.monotonic() + 10
    while not is_gone(int(line)) and time.monotonic() < give_up_at:
        time.sleep(0.01)
    assert is_gone(int(line))


def test_a_stopped_process_is_found_stalled_woken_and_asked_to_leave(run: Run) -> None:
    code = LEAVES_ON_TERM.replace("time.sleep(600)", "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)")
    end = run(code, stall_timeout_s=0.5)
    assert end.stalled
    assert end.status == 75
    assert end.outcome == Paused(checkpoint="c", reason="USR1")


def test_a_process_that_computes_has_not_stalled(run: Run) -> None:
    code = "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: sum(range(10000))"
    end = run(code, stall_timeout_s=1.0)
    assert (end.status, end.stalled) == (0, False)


def test_without_a_timeout_nothing_is_taken_for_stalled(run: Run) -> None:
    assert not run("import time; time.sleep(0.5)").stalled


@pytest.fixture
def sleeping() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_time_in_which_the_watcher_did_not_run_is_no_stall(sleeping: "subprocess.Popen[bytes]") -> None:
    now = 0.0
    activity = child._Activity(sleeping.pid, 900.0, clock=lambda: now)
    while not activity.stalled and now < 10_000.0:
        activity.look()
        now += 3600.0  # all of the job was suspended
    assert not activity.stalled
    resumed = now
    while not activity.stalled and now < resumed + 10_000.0:
        now += OWN_PAUSE_S / 2
        activity.look()
    assert 900.0 < now - resumed < 920.0


def test_peak_memory_is_that_of_this_stage_and_of_no_other_process(run: Run) -> None:
    code = "block = bytearray({size} << 20); block[::4096] = b'x' * len(block[::4096]); time.sleep(0.5)"
    own_block = bytearray(150 << 20)  # the process that watches may be larger than the stage
    own_block[::4096] = b"x" * len(own_block[::4096])
    large = run("import time; " + code.format(size=600))
    small = run("import time; " + code.format(size=30))
    assert large.peak_memory_mib > 600
    assert 30 < small.peak_memory_mib < 100
    assert run("pass").peak_memory_mib < 100  # it may be over before it is looked at
    del own_block


def test_a_stage_is_started_by_the_python_of_this_process(directory: RunDirectory) -> None:
    command = child_command(directory)
    assert command[:5] == [sys.executable, "-P", "-m", "kdgat.stage", str(directory.path)]


def test_options_that_a_person_has_set_for_python_are_none_of_the_stages(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PYTHONWARNINGS": "error", "PYTHONINSPECT": "1", "PYTHONVERBOSE": "1"}.items():
        monkeypatch.setenv(name, value)
    end = run("import warnings; warnings.warn('old', DeprecationWarning, 2); " + FINISHES)
    assert (end.status, end.outcome) == (0, Finished())


def test_the_first_wish_to_stop_gives_the_reason() -> None:
    stop = StopRequest()
    assert not stop.is_set()
    assert not stop.wait(0.0)
    threading.Thread(target=stop.set, args=("SIGTERM",)).start()
    assert stop.wait(10.0)
    stop.set("the flow is gone")
    assert stop.reason == "SIGTERM"
    assert not stop.insisted


def test_a_signal_that_arrives_while_its_flag_is_used_does_not_block() -> None:
    # In a process of its own: what is tested for ends in a deadlock.
    code = """
import signal, time
from kdgat.cluster.child import StopRequest
stop = StopRequest()
signal.signal(signal.SIGALRM, lambda *_: stop.set("SIGALRM"))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
give_up_at = time.monotonic() + 3
while time.monotonic() < give_up_at:
    stop.set("here")
    stop.wait(0.0)
signal.setitimer(signal.ITIMER_REAL, 0)
print(stop.reason)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) in ((0, "here"), (0, "SIGALRM")), done.stderr[-500:]


def test_every_new_part_changes_the_marker(directory: RunDirectory) -> None:
    part = directory.parts_path / "train" / "00000000.json"
    part.parent.mkdir(parents=True)
    part.with_suffix(".h5").write_bytes(b"the beginning of a part")
    assert checkpoint_marker(directory) == ()
    part.write_text("{}")
    of_parts = checkpoint_marker(directory)
    assert of_parts != ()
    (directory.path / "train.h5").write_bytes(b"what they were joined to")
    assert checkpoint_marker(directory) != of_parts


def test_every_new_checkpoint_changes_the_marker(directory: RunDirectory) -> None:
    assert checkpoint_marker(directory) == ()
    path = directory.checkpoints_path / "phase" / "checkpoint-00000010.pt"
    path.parent.mkdir(parents=True)
    assert checkpoint_marker(directory) == ()
    path.write_bytes(b"1")
    first = checkpoint_marker(directory)
    os.utime(path, ns=(1, 1))  # replaced by one of the same name
    second = checkpoint_marker(directory)
    path.with_name("checkpoint-00000020.pt").write_bytes(b"2")
    assert len({first, second, checkpoint_marker(directory)}) == 3


@pytest.mark.parametrize(
    "name", [".checkpoint-00000010.pt.n1.77.tmp", "checkpoint-00000010.pt.sha256", "checkpoint-00000010.damaged"]
)
def test_what_a_killed_writer_leaves_is_no_checkpoint(directory: RunDirectory, name: str) -> None:
    directory.checkpoints_path.mkdir()
    (directory.checkpoints_path / name).touch()
    assert checkpoint_marker(directory) == ()


@pytest.mark.parametrize("content", [None, "", '{"epoch": ', "[1]"], ids=["missing", "empty", "cut short", "a list"])
def test_progress_that_cannot_be_read_is_none(directory: RunDirectory, content: str | None) -> None:
    if content is not None:
        directory.progress_path.write_text(content)
    assert read_progress(directory) == {}


def test_whoever_leaves_jobs_alone_and_is_told_so_again_does_not_stop_them() -> None:
    stop = StopRequest()
    stop.detach("SIGTERM")
    stop.detach("the flow ended with RuntimeError")
    assert stop.leaves_jobs
    stopped = StopRequest()
    stopped.set("SIGINT")
    stopped.detach("SIGTERM")
    assert not stopped.leaves_jobs


def test_a_ctrl_c_is_passed_on_as_such_once_the_stage_handles_signals():
    stop = StopRequest()
    stop.set("SIGINT")
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert child._stop_signal(os.getpid(), stop) == signal.SIGTERM  # Python would answer a SIGINT by a traceback
        signal.signal(signal.SIGTERM, lambda *_: None)
        assert child._stop_signal(os.getpid(), stop) == signal.SIGINT
        stop.reason = "a cancellation in Prefect"
        assert child._stop_signal(os.getpid(), stop) == signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_lines_that_nobody_can_take_hold_no_stage(run: Run) -> None:
    def refuse(line: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    end = run("for number in range(3000): print(number, 'x' * 60)", on_line=refuse)
    assert end.status == 0
    assert end.last_lines[-1].startswith("2999 ")


def test_a_job_goes_on_without_the_file_it_prints_to() -> None:
    program = "from kdgat.cluster.child import say; say('a line'); import os; os._exit(7)"
    with Path("/dev/full").open("w") as full:
        assert subprocess.run([sys.executable, "-c", program], stdout=full, check=False).returncode == 7
