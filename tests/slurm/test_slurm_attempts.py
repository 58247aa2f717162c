"""Attempts as jobs of a real Slurm, without Prefect around them: what goes wrong before and beside training."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest

from kdgat.cluster import AttemptLedger, EndKind, Resources
from kdgat.cluster import slurm as cluster_slurm
from kdgat.cluster.decision import MAX_NOT_STARTED, Retry
from kdgat.cluster.ending import AttemptEnd
from kdgat.cluster.script import SECRETS
from kdgat.stage import Failed, Finished, Paused
from tests.slurm.slurm import PrivateSlurm
from tests.slurm.stage_job import StageJob, site, watched
from tests.support.commands import write_commands
from tests.support.waiting import wait_until, when

ENDLESS = {"max_epochs": 100_000, "patience": None, "checkpoint_every_steps": 1, "checkpoint_interval_s": 0}


@pytest.fixture
def job(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[StageJob]:
    with watched(StageJob(tmp_path), slurm) as job:
        yield job


@pytest.fixture
def endless_job(tmp_path: Path, slurm: PrivateSlurm) -> Iterator[StageJob]:
    with watched(StageJob(tmp_path, **ENDLESS), slurm) as job:
        yield job


def test_a_stage_finishes_in_a_job_of_its_own(job: StageJob, slurm: PrivateSlurm) -> None:
    conclusion = job.run(site(), gpus=1)
    assert isinstance(conclusion.outcome, Finished)
    (record,) = job.attempts
    assert record.node in slurm.nodes
    assert record.peak_memory_mib is not None
    assert slurm.job(record.job_id)["JobState"] == "COMPLETED"
    assert "gpu:v100:1" in slurm.job(record.job_id)["TresPerNode"]
    assert any("parameters" in line for line in job.lines)
    (attempt,) = json.loads(job.directory.provenance_path.read_text())["attempts"]
    assert attempt["given_gpus"] == "1"
    assert attempt["trains_on"]["device"] == "cpu", "as its configuration says"
    assert job.states[-1][0] == "Running"


def test_jobs_of_any_name_and_a_wrapper_that_greets_change_nothing(
    job: StageJob, slurm: PrivateSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = b"--job-name=Pr\xfcfung\nmy|job\n77|RUNNING|n1"
    words: list[bytes | str] = ["sbatch", "--parsable", "--hold", name, "--wrap", "true"]
    other = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    sbatch = f"echo 'Welcome to Example {other}'; {shutil.which('sbatch')} \"$@\"; echo 3 notices"
    monkeypatch.setenv("PATH", write_commands(tmp_path / "bin", sbatch=sbatch))
    try:
        with monkeypatch.context() as personal:
            personal.setenv("SLURM_CLUSTERS", "elsewhere")
            personal.setenv("SCANCEL_STATE", "SUSPENDED")
            assert isinstance(job.run(site()).outcome, Finished)
            assert other in (cluster_slurm.Slurm().queue() or {})
        (record,) = job.attempts
        assert record.job_id != other
    finally:
        slurm.command("scancel", other)


def test_the_epilogue_and_the_prologue_run_on_the_node(job: StageJob) -> None:
    told = job.path / "told"
    conclusion = job.run(site(prologue=[f"echo before > {told}"], epilogue=[f"echo after $SLURM_JOB_ID >> {told}"]))
    assert isinstance(conclusion.outcome, Finished)
    assert told.read_text().splitlines() == ["before", f"after {job.attempts[0].job_id}"]


def test_a_job_gets_no_secrets_and_nobody_else_reads_its_files(
    job: StageJob, slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*SECRETS, "PREFECT_API_URL"):
        monkeypatch.setenv(name, "a-secret")
    monkeypatch.setenv("OF_THE_USER", "not-a-secret")
    shell, worker = job.path / "shell", job.path / "worker"
    here = site(prologue=[f"cat /proc/$$/environ > {shell}; env > {worker}"])
    with here.creating_files():
        conclusion = job.run(here)
    assert isinstance(conclusion.outcome, Finished)
    handed_in = dict(word.split("=", 1) for word in shell.read_text().split("\0") if "=" in word)
    assert handed_in["OF_THE_USER"] == "not-a-secret"
    assert {name: handed_in[name] for name in SECRETS} == dict.fromkeys(SECRETS, "")
    assert not [line for line in worker.read_text().splitlines() if line.startswith(("PREFECT_", "PGPASSWORD"))]
    log = "\n".join(path.read_text(errors="replace") for path in (slurm.directory / "log").glob("*.log"))
    assert "a-secret" not in log.replace("not-a-secret", "")
    files = [job.directory.log_path, job.directory.weights_path, *(job.path / "slurm").iterdir()]
    assert len(files) > 3
    assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in files} == {"0o600"}
    assert stat.S_IMODE((job.path / "slurm").stat().st_mode) == 0o700


def test_a_refused_job_stops_at_once_with_the_words_of_slurm(job: StageJob) -> None:
    conclusion = job.run(site(partition="nosuch"))
    assert isinstance(conclusion.outcome, Failed)
    assert "invalid partition specified: nosuch" in conclusion.outcome.evidence
    assert job.ends == [EndKind.REFUSED.value]


def test_a_worker_that_cannot_import_is_not_tried_again(job: StageJob) -> None:
    python = Path(sys.base_prefix) / "bin" / "python3"  # the interpreter without what is installed beside it
    conclusion = job.run(site(python=str(python)))
    assert isinstance(conclusion.outcome, Failed)
    assert "No module named '" in conclusion.outcome.evidence
    # The job's process or that of the stage, whichever misses something first: that interpreter may have some of it.
    (end,) = job.ends
    assert end in (EndKind.NOT_STARTED.value, EndKind.FAILED.value)


@pytest.mark.nightly
def test_a_python_that_is_not_there_is_looked_for_on_other_nodes(job: StageJob) -> None:
    conclusion = job.run(site(python="/nowhere/python"))
    assert isinstance(conclusion.outcome, Failed)
    assert "/nowhere/python" in conclusion.outcome.evidence
    assert job.ends.count(EndKind.NOT_STARTED.value) == MAX_NOT_STARTED


@pytest.mark.nightly
def test_a_prologue_that_fails_the_job_is_tried_on_other_nodes(job: StageJob) -> None:
    conclusion = job.run(site(prologue=["echo broken node >&2; exit 3"]))
    assert isinstance(conclusion.outcome, Failed)
    assert "broken node" in conclusion.outcome.evidence
    assert job.ends.count(EndKind.NOT_STARTED.value) == MAX_NOT_STARTED
    assert job.attempts[0].node != job.attempts[1].node


@pytest.fixture
def full_cluster(slurm: PrivateSlurm) -> Iterator[None]:
    """No node takes a job while the test lasts."""
    nodes = ",".join(slurm.nodes)
    slurm.command("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=test")
    yield
    slurm.command("scontrol", "update", f"NodeName={nodes}", "State=RESUME")


@pytest.mark.usefixtures("full_cluster")
def test_a_job_that_waits_too_long_is_given_up_where_the_site_says_so(job: StageJob) -> None:
    conclusion = job.run(site(start_timeout_s=1.5, on_start_timeout="stop"))
    assert isinstance(conclusion.outcome, Failed)
    assert "has been PENDING" in conclusion.outcome.evidence
    assert job.ends == [EndKind.STILL_PENDING.value]
    assert any(name == "SlurmPending" for name, _ in job.states)


@pytest.fixture
def short_partition(slurm: PrivateSlurm) -> Iterator[None]:
    """The partition grants no job more than an hour; Slurm takes jobs that ask for more and never starts them."""
    slurm.command("scontrol", "update", "PartitionName=gpu", "MaxTime=60")
    yield
    slurm.command("scontrol", "update", "PartitionName=gpu", "MaxTime=1-00:00:00")


@pytest.mark.usefixtures("short_partition")
def test_a_job_that_can_never_start_stops_with_the_words_of_slurm(job: StageJob, slurm: PrivateSlurm) -> None:
    conclusion = job.run(site(poll_interval_s=0.5), walltime="02:00:00")
    assert isinstance(conclusion.outcome, Failed)
    assert "PENDING PartitionTimeLimit" in conclusion.outcome.evidence
    (record,) = job.attempts
    assert record.end == EndKind.CANNOT_START.value
    assert slurm.job(record.job_id)["JobState"] == "CANCELLED"


@pytest.mark.usefixtures("short_partition")
def test_a_walltime_that_grew_beyond_what_slurm_grants_is_undone(job: StageJob) -> None:
    ledger, asked = AttemptLedger(job.directory), Resources(walltime_s=3600, memory_mib=1000)
    longer = asked.model_copy(update={"walltime_s": 7200})
    ledger.close(ledger.open(asked), AttemptEnd(EndKind.TIMEOUT, "of an earlier command"), Retry("2 h", longer))
    conclusion = job.run(site(poll_interval_s=0.5), walltime="01:00:00")
    assert isinstance(conclusion.outcome, Finished)
    assert job.ends == [EndKind.TIMEOUT.value, EndKind.CANNOT_START.value, EndKind.FINISHED.value]
    assert [record.resources.walltime_s for record in job.attempts if record.resources] == [3600, 7200, 3600]


@pytest.mark.nightly
def test_a_stage_whose_directory_is_away_goes_on_when_it_is_back(job: StageJob) -> None:
    away = job.path / "away"
    job.directory.spec_path.rename(away)  # as on a node that has not mounted the filesystem
    when(lambda: "StageFailed" in job.ends, lambda: away.rename(job.directory.spec_path))
    conclusion = job.run(site())
    assert isinstance(conclusion.outcome, Finished)
    assert (job.attempts[0].failure, job.ends[-1]) == ("ENVIRONMENT", EndKind.FINISHED.value)
    assert job.attempts[0].node in job.attempts[1].excluded_nodes


@pytest.mark.nightly
@pytest.mark.usefixtures("full_cluster")
def test_a_job_that_waits_too_long_goes_on_waiting_by_default(job: StageJob, slurm: PrivateSlurm) -> None:
    when(lambda: any(name == EndKind.STILL_PENDING.value for name, _ in job.states), lambda: job.stop.set("a test"))
    conclusion = job.run(site(start_timeout_s=1.0))
    assert isinstance(conclusion.outcome, Paused)
    assert any("waiting on" in line for line in job.lines)


@pytest.mark.nightly
def test_a_pending_job_that_somebody_cancels_stops(job: StageJob, slurm: PrivateSlurm, full_cluster: None) -> None:
    when(
        lambda: any(name == "SlurmPending" for name, _ in job.states),
        lambda: slurm.command("scancel", job.attempts[-1].job_id),
    )
    conclusion = job.run(site())
    assert isinstance(conclusion.outcome, Paused)
    assert "somebody cancelled job" in conclusion.outcome.reason
    assert job.ends == [EndKind.CANCELLED.value]


def test_a_stop_request_saves_and_ends_the_job(endless_job: StageJob, slurm: PrivateSlurm) -> None:
    job = endless_job
    when(lambda: job.directory.newest_checkpoint(), lambda: job.stop.set("a test"))
    conclusion = job.run(site())
    assert isinstance(conclusion.outcome, Paused)
    assert conclusion.outcome.reason == "a test"
    assert (job.directory.path / conclusion.outcome.checkpoint).is_file()
    assert slurm.job(job.attempts[0].job_id)["JobState"] == "COMPLETED"


def test_a_walltime_that_leaves_no_time_to_train_is_refused_with_the_numbers(job: StageJob, tmp_path: Path) -> None:
    job = StageJob(tmp_path / "slow", checkpoint_margin_s=90)
    conclusion = job.run(site(limits={"walltime": "00:01:00"}, defaults={"walltime": "00:01:00"}))
    assert isinstance(conclusion.outcome, Failed)
    for words in ("00:01:00 is too short", "needs more than 90 s", "remain before the job ends"):
        assert words in conclusion.outcome.evidence
    assert job.ends == ["Paused"]


@pytest.mark.nightly
def test_a_walltime_that_is_too_short_grows_where_the_site_allows(job: StageJob, tmp_path: Path) -> None:
    job = StageJob(tmp_path / "slow", checkpoint_margin_s=90)
    conclusion = job.run(site(), walltime="00:01:00")
    assert isinstance(conclusion.outcome, Finished)
    walltimes = [record.resources.walltime_s for record in job.attempts if record.resources is not None]
    assert walltimes == [60, 180]


def test_a_job_goes_on_without_its_command_and_the_next_one_watches_it(job: StageJob, slurm: PrivateSlurm) -> None:
    first = job.start(site()).job_id
    job.stop.detach("SIGHUP")
    outcome = job.finish().outcome
    assert isinstance(outcome, Paused)
    assert f"job {first} goes on" in outcome.reason
    wait_until(lambda: slurm.job(first)["JobState"] == "COMPLETED", "the end of the job", log=lambda: job.log)
    assert isinstance(job.start(site()).finish().outcome, Finished)
    assert [(record.job_id, record.end) for record in job.attempts] == [(first, "Completed")]
    assert job.attempts[0].peak_memory_mib is not None  # from the report


def test_a_job_that_waits_keeps_its_place_for_the_next_command(job: StageJob, slurm: PrivateSlurm) -> None:
    nodes = ",".join(slurm.nodes)
    slurm.command("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=test")
    try:
        first = job.start(site()).job_id
        job.stop.detach("SIGHUP")
        job.finish()
        ledger = AttemptLedger(job.directory)
        ledger.submitted(ledger.records[0], "")  # as if the command had died right after sbatch
        job.start(site())
        job.wait_until(lambda: any(f"watching job {first}" in line for line in job.lines), "the job")
    finally:
        slurm.command("scontrol", "update", f"NodeName={nodes}", "State=RESUME")
    assert isinstance(job.finish().outcome, Finished)
    assert [(record.job_id, record.end) for record in job.attempts] == [(first, "Completed")]


def test_a_job_connects_to_each_command_that_watches_it(endless_job: StageJob, slurm: PrivateSlurm) -> None:
    job = endless_job
    for number in range(3):
        job.start(site())
        output = job.wait_until(lambda: list((job.path / "slurm").glob("*.out")), "the output of the job")[0]
        job.wait_until(lambda: output.read_text().count("connected to ") == number + 1, "a connection")  # noqa: B023
        job.stop.set("a test") if number == 2 else job.stop.detach("SIGHUP")
        job.finish()
    assert len(job.attempts) == 1
    assert job.ends == ["Paused"]


@pytest.mark.nightly
def test_a_job_with_a_number_that_was_ours_once_is_left_alone(job: StageJob, slurm: PrivateSlurm) -> None:
    stranger = slurm.submit("sleep 600", "--partition=gpu")
    try:
        ledger = AttemptLedger(job.directory)
        ledger.submitted(ledger.open(None), stranger)
        assert isinstance(job.run(site()).outcome, Finished)
        assert slurm.job(stranger)["JobState"] == "RUNNING"
    finally:
        slurm.command("scancel", stranger)
        slurm.wait_for_job(stranger, "CANCELLED")


def test_a_worker_that_dies_with_its_report_has_finished_its_stage(job: StageJob) -> None:
    # The epilogue's parent is the worker.
    conclusion = job.run(site(epilogue=["kill -KILL $PPID"]))
    assert isinstance(conclusion.outcome, Finished)
    assert job.ends == [EndKind.FINISHED.value]


@pytest.mark.nightly
def test_a_worker_that_dies_before_its_report_is_fetched_hangs_nothing(
    job: StageJob, slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = distributed.Future.result

    def die_first(future: Any, timeout: Any = None) -> Any:
        slurm.command("scancel", "--signal=KILL", "--full", job.attempts[-1].job_id)
        slurm.command("scancel", job.attempts[-1].job_id)
        slurm.wait_for_job(job.attempts[-1].job_id, "CANCELLED", "FAILED", "COMPLETED")
        return fetch(future, timeout)

    monkeypatch.setattr(distributed.Future, "result", die_first)
    assert isinstance(job.run(site()).outcome, Finished)


@pytest.mark.nightly
def test_a_job_cancelled_in_its_epilogue_has_finished_its_stage(job: StageJob, slurm: PrivateSlurm) -> None:
    when(
        lambda: isinstance(job.directory.read_outcome(), Finished),
        lambda: slurm.command("scancel", job.attempts[-1].job_id),
    )
    conclusion = job.run(site(epilogue=["sleep 50"]))
    assert isinstance(conclusion.outcome, Finished)


@pytest.mark.parametrize("command", ["sbatch", "scancel"])
def test_a_command_of_slurm_that_hangs_is_not_waited_for_for_ever(
    job: StageJob, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
