"""The process in a watcher's job, a real one, beside an sbatch and a scancel that write down how they are called."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.watcher import FEWEST_SHORT, GIVE_UP_S, SCRIPT, STATE, WatcherState
from kdgat.cluster import AttemptLedger, Resources
from kdgat.cluster.script import watcher_name
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import RunDirectory, StageSpec
from tests.support.commands import write_commands
from tests.support.failing_files import FailingFiles
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes

COMMANDS = """
case $(basename "$0") in
squeue)
    echo "7|RUNNING|n1|None|$NAME"
    while read -r number; do echo "$number|PENDING||Dependency|$NAME"; done <"$CALLS.queue"
    exit 0 ;;
scontrol) echo "$*" >>"$CALLS.order"; exit 0 ;;
esac
echo "$(basename "$0") $*" >>"$CALLS"
case $(basename "$0") in
sbatch)
    [ -e "$CALLS.refused" ] && { echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; }
    echo $((8 + $(wc -l <"$CALLS.queue"))) | tee -a "$CALLS.queue" ;;
scancel) : >"$CALLS.queue" ;;
esac
"""
SLEEPS = "import time; print('there', flush=True); time.sleep(600)"
BUSY = "import os, time; time.sleep(1)"  # until the next watchers are asked for
STAYS = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {SLEEPS}"
LEAVES = f"""
import signal, sys
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: sys.exit(130))
{SLEEPS}
"""


class WatcherJob:
    """Watchers of one run, job number 7 each time."""

    def __init__(self, path: Path) -> None:
        self.output = OutputDirectory(path / "out")
        self.output.slurm_path.mkdir(parents=True)
        self.calls_path, self.log_path = path / "calls", path / "log"
        self.calls_path.touch()
        path.joinpath("calls.queue").touch()
        self.environment = {
            **os.environ,
            "PATH": write_commands(
                path / "bin", **dict.fromkeys(("sbatch", "scancel", "scontrol", "squeue"), COMMANDS)
            ),
            "CALLS": str(self.calls_path),
            "NAME": watcher_name(self.output.path),
            "SLURM_JOB_ID": "7",
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, program: str) -> "WatcherJob":
        command = [sys.executable, "-m", "flows.watcher", str(self.output.path), sys.executable, "-c", program]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        return self

    def finish(self) -> int:
        assert self.process is not None
        return self.process.wait(120)

    def wait_for_command(self) -> "WatcherJob":
        wait_until(lambda: "there" in self.printed(), "the command", log=self.printed)
        return self

    def signal(self, number: signal.Signals) -> "WatcherJob":
        assert self.process is not None
        self.process.send_signal(number)
        return self

    def calls(self) -> list[str]:
        return self.calls_path.read_text().splitlines()

    def printed(self) -> str:
        return self.log_path.read_text()

    @property
    def state_path(self) -> Path:
        return self.output.slurm_path / STATE

    @property
    def state(self) -> WatcherState:
        return WatcherState.read(self.state_path)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WatcherJob]:
    job = WatcherJob(tmp_path)
    yield job
    if job.process is not None and job.process.poll() is None:
        job.process.kill()
        job.process.wait()


@pytest.fixture
def two_more(job: WatcherJob) -> list[str]:
    """How two watchers are asked for."""
    return [f"sbatch --parsable {job.output.slurm_path / SCRIPT}"] * 2


def test_two_watchers_wait_from_the_start_and_go_with_the_end_of_the_command(
    job: WatcherJob, two_more: list[str], tmp_path: Path
) -> None:
    over = tmp_path / "over"
    job.start(f"import os, time\nwhile not os.path.exists({str(over)!r}): time.sleep(0.1)")
    wait_until(lambda: job.calls() == two_more, "two watchers", log=job.printed)
    over.touch()
    assert job.finish() == 0
    assert job.calls() == [*two_more, "scancel 8 9"]
    assert job.state.is_over
    assert job.start("raise SystemExit(3)").finish() == 0  # one that begins all the same
    assert len(job.calls()) == 3


@pytest.mark.parametrize("program", [f"{BUSY}; os.kill(os.getpid(), 9)", f"{BUSY}; raise RuntimeError('no server')"])
def test_a_command_that_is_killed_or_breaks_down_is_given_again_by_the_next(
    job: WatcherJob, two_more: list[str], program: str
) -> None:
    assert job.start(program).finish() != 0
    assert job.calls() == two_more
    assert "waiting: 8, 9" in job.printed()
    assert (job.state.num_short, job.state.is_over) == (1, False)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_stage_that_failed_is_an_end_of_its_own_unless_that_was_before(job: WatcherJob, is_new: bool) -> None:
    failed = StageRecord(name="normal", stage="normal", scale="large", seed=0, state=StageState.FAILED)
    job.output.write_index(RunIndex(family="can", config={}, stages=[failed]))
    index = str(job.output.index_path)
    assert job.start(f"{BUSY}; os.utime({index!r}) if {is_new} else None; raise SystemExit(1)").finish() == 1
    assert job.state.is_over == is_new


def test_a_stage_whose_attempt_is_open_has_not_failed(job: WatcherJob) -> None:
    directory = RunDirectory(job.output.stages_path / "normal-large-seed0-0").create(
        StageSpec(family="nowhere", stage="normal", seed=0)
    )
    AttemptLedger(directory).open(Resources(walltime_s=600, memory_mib=100))
    lost = StageRecord(
        name="normal", stage="normal", scale="large", seed=0, state=StageState.FAILED,
        directory=str(directory.path.relative_to(job.output.path)),
    )  # fmt: skip
    job.output.write_index(RunIndex(family="can", config={}, stages=[lost]))
    index = str(job.output.index_path)
    assert job.start(f"{BUSY}; os.utime({index!r}); raise SystemExit(1)").finish() == 1
    assert not job.state.is_over


def test_a_run_that_was_cancelled_in_prefect_is_over(job: WatcherJob) -> None:
    assert job.start("raise SystemExit(130)").finish() == 130
    assert job.state.is_over


def test_at_the_end_of_the_job_the_command_leaves_and_the_next_watchers_stay(
    job: WatcherJob, two_more: list[str]
) -> None:
    job.start(LEAVES).wait_for_command().signal(signal.SIGTERM)
    assert job.finish() == 130
    assert job.calls() == two_more
    assert job.state == WatcherState()


def test_ctrl_c_stops_for_good_even_where_the_others_are_not_cancelled(job: WatcherJob, two_more: list[str]) -> None:
    job.start(STAYS).wait_for_command().signal(signal.SIGINT)
    wait_until(lambda: job.state.is_over, "a note that it is over")
    job.signal(signal.SIGKILL)
    job.finish()
    assert job.calls() == two_more


def test_ctrl_c_passes_to_the_command_once(job: WatcherJob, two_more: list[str]) -> None:
    job.start(LEAVES).wait_for_command().signal(signal.SIGINT)
    assert job.finish() == 130
    assert job.calls() == [*two_more, "scancel 8 9"]


def test_watchers_that_are_refused_are_asked_for_again_before_this_one_leaves(
    job: WatcherJob, two_more: list[str]
) -> None:
    refused = job.calls_path.with_name("calls.refused")
    refused.touch()
    job.start(LEAVES).wait_for_command()
    wait_until(lambda: "QOSMaxSubmitJobPerUserLimit" in job.printed(), "the refusal")
    refused.unlink()
    job.signal(signal.SIGTERM)
    assert job.finish() == 130
    assert job.calls() == [two_more[0], *two_more]


def test_who_cancels_a_watcher_early_gets_no_new_ones(job: WatcherJob) -> None:
    job.calls_path.with_name("calls.refused").touch()
    job.environment["SLURM_JOB_END_TIME"] = str(int(time.time()) + 86_400)
    job.start(LEAVES).wait_for_command()
    wait_until(lambda: job.calls(), "the first try")
    job.signal(signal.SIGTERM)
    assert job.finish() == 130
    assert len(job.calls()) == 1


def begins(*times: str) -> list[str]:
    return [f"update JobId={number} StartTime={time}" for number, time in zip((8, 9), times, strict=True)]


def test_the_first_that_waits_begins_at_once_and_the_one_behind_it_an_hour_later(job: WatcherJob) -> None:
    order = job.calls_path.with_name("calls.order")
    job.start(LEAVES).wait_for_command()
    wait_until(lambda: order.is_file() and len(order.read_text().splitlines()) == 2, "their times", log=job.printed)
    job.signal(signal.SIGTERM)
    assert job.finish() == 130
    assert order.read_text().splitlines() == begins("now", "now+60minutes")


def test_who_was_put_off_behind_another_waits_for_no_hour_once_that_one_runs(job: WatcherJob) -> None:
    order = job.calls_path.with_name("calls.order")
    job.calls_path.with_name("calls.queue").write_text("8\n")  # left by the watcher before
    job.start(f"{BUSY}; raise RuntimeError('no server')").finish()
    assert order.read_text().splitlines() == begins("now", "now+60minutes")
    assert len(job.calls()) == 1


def test_watchers_that_end_soon_are_followed_after_ever_longer_pauses_until_the_last_one(job: WatcherJob) -> None:
    WatcherState(num_short=1).write(job.state_path)
    job.start("print('there')")
    wait_until(lambda: job.calls(), "the next watchers")
    assert "there" not in job.printed()
    job.signal(signal.SIGTERM)
    assert job.finish() == 128 + signal.SIGTERM
    WatcherState(num_short=FEWEST_SHORT, short_since=time.time() - GIVE_UP_S - 1).write(job.state_path)
    assert job.start("print('there')").finish() == 1
    assert "none is tried any more" in job.printed()
    assert "there" not in job.printed()


def test_a_watcher_that_dies_while_it_waits_is_not_counted_and_the_next_one_waits_for_the_rest(job: WatcherJob) -> None:
    WatcherState(num_short=4).write(job.state_path)
    job.start("print('there')")
    wait_until(lambda: job.state.pauses_until, "a pause")
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    assert job.state.num_short == 4
    assert job.state.pauses_until == pytest.approx(time.time() + 480, abs=60)
    WatcherState(num_short=4, pauses_until=time.time() + 1).write(job.state_path)
    assert job.start(SLEEPS).wait_for_command().state == WatcherState(5, pytest.approx(time.time(), abs=60))


def test_no_pause_follows_a_watcher_under_which_attempts_began_or_ended(job: WatcherJob) -> None:
    WatcherState(num_short=9, short_since=1.0, noted=3).write(job.state_path)
    path = job.output.stages_path / "one" / "attempts.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{...}\n")
    state = job.start(SLEEPS).wait_for_command().state
    assert (state.num_short, state.noted, state.pauses_until) == (1, 6, 0.0)
    assert state.short_since > 1.0


@pytest.mark.parametrize(("num_short", "hours"), [(40, 20), (3, 90)])
def test_a_chain_ends_neither_before_a_day_nor_after_a_few_long_queues(num_short: int, hours: int) -> None:
    assert not WatcherState(num_short=num_short, short_since=time.time() - hours * 3600).is_late()


def test_a_watcher_whose_files_cannot_be_read_waits_for_them_and_believes_what_they_say(job: WatcherJob) -> None:
    over = job.state_path.with_name("over")
    WatcherState(is_over=True).write(over)
    job.state_path.mkdir()  # any error but that it is not there
    job.start("print('there')")
    wait_until(lambda: "looking again" in job.printed(), "a word of what is wrong")
    job.state_path.rmdir()
    over.rename(job.state_path)
    assert job.finish() == 0
    assert "there" not in job.printed()
    assert job.calls() == []


def test_the_command_does_not_believe_to_be_the_job(job: WatcherJob) -> None:
    job.start("import json, os; print(json.dumps([name for name in os.environ if name.startswith('SLURM_JOB')]))")
    assert job.finish() == 0
    assert json.loads(job.printed()) == []


def test_what_a_newer_kdgat_noted_is_left_to_it_with_its_jobs(job: WatcherJob) -> None:
    path = job.output.slurm_path / STATE
    path.write_text(json.dumps({"num_short": 0, "is_over": False, "schema_version": 2}))
    before = path.read_bytes()
    assert job.start(SLEEPS).finish() == 1
    assert "watcher.json was written by a newer kdgat" in job.printed()
    assert "Traceback" not in job.printed()
    assert (job.calls(), path.read_bytes()) == ([], before)
    path.write_text(json.dumps({"num_short": 0, "is_over": True, "more": 1}))
    assert job.start(SLEEPS).finish() == 0  # a key that is not known does not let a run that is over begin again


def test_a_note_that_cannot_be_written_for_a_moment_delays_the_command_no_longer(
    job: WatcherJob, tmp_path: Path
) -> None:
    files = FailingFiles(tmp_path / "files")
    job.environment |= files.environment
    with files.failing(errno.ESTALE, "*watcher.json*"):
        job.start(SLEEPS)
        wait_until(lambda: "cannot be written" in job.printed(), "a note that fails")
        assert "there" not in job.printed()
    job.wait_for_command()
    assert job.state.num_short == 1


def test_whoever_stops_a_watcher_that_cannot_see_the_run_ends_the_chain(job: WatcherJob) -> None:
    job.calls_path.with_suffix(".queue").write_text("8\n9\n")
    job.state_path.mkdir()  # any error but that it is not there
    job.start("print('there')")
    wait_until(lambda: "looking again" in job.printed(), "a look in vain")
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    assert job.finish() == 128 + signal.SIGINT
    assert job.calls() == ["scancel 8 9"]
