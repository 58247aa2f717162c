from pathlib import Path

import pytest

from kdgat.cluster import EndKind, Slurm
from kdgat.cluster.scheduler import (
    ALIVE_STATES,
    ENDS,
    GONE,
    UNKNOWN,
    WAITING_STATES,
    JobStatus,
    QueuedJob,
)
from kdgat.cluster.slurm import SubmissionError, job_number, parse_job, refusal

# What `scontrol --oneliner show job` of Slurm 22.05.8 said of real jobs, a comment before each.
PRINTED = (Path(__file__).parent / "golden" / "scontrol_jobs.txt").read_text().splitlines()
JOBS = {PRINTED[line].removeprefix("# "): PRINTED[line + 1] for line in range(0, len(PRINTED), 2)}

STATUSES = {
    "running": JobStatus("RUNNING", "None", "n1", "0:0"),
    "waits for resources": JobStatus("PENDING", "Resources", "", "0:0"),  # though scontrol has SchedNodeList=n3
    "held": JobStatus("PENDING", "JobHeldUser", "", "0:0"),
    "completed": JobStatus("COMPLETED", "None", "n3", "0:0"),
    "failed": JobStatus("FAILED", "NonZeroExitCode", "n2", "3:0"),
    "killed": JobStatus("FAILED", "JobLaunchFailure", "n2", "0:9"),
    "out of memory": JobStatus("OUT_OF_MEMORY", "OutOfMemory", "n2", "0:125"),
    "ending at its walltime": JobStatus("COMPLETING", "TimeLimit", "n1", "0:0"),
    "timeout": JobStatus("TIMEOUT", "TimeLimit", "n1", "0:9"),
    "ending after scancel": JobStatus("COMPLETING", "None", "n1", "0:0"),
    "cancelled": JobStatus("CANCELLED", "None", "n1", "0:9"),
    "cancelled while pending": JobStatus("CANCELLED", "JobHeldUser", "", "0:0"),
    "node failure": JobStatus("NODE_FAIL", "NodeDown", "n3", "0:0"),
}


@pytest.mark.parametrize("name", JOBS)
def test_what_scontrol_prints_is_understood(name: str) -> None:
    status = parse_job(JOBS[name])
    assert status == STATUSES[name]
    assert status.is_waiting == (status.state == "PENDING")
    assert status.is_over == (status.state not in ("PENDING", "RUNNING", "COMPLETING"))


def test_output_that_is_no_job_is_no_answer() -> None:
    assert parse_job("") == JobStatus(UNKNOWN)
    assert not parse_job("slurm_load_jobs error").is_over


@pytest.mark.parametrize(
    ("status", "once_begun", "before"),
    [
        (STATUSES["timeout"], EndKind.TIMEOUT, EndKind.TIMEOUT),
        (JobStatus("DEADLINE"), EndKind.TIMEOUT, EndKind.TIMEOUT),
        (STATUSES["ending at its walltime"], EndKind.TIMEOUT, EndKind.TIMEOUT),
        (STATUSES["out of memory"], EndKind.HOST_OOM, EndKind.HOST_OOM),
        (STATUSES["node failure"], EndKind.NODE_FAILURE, EndKind.NODE_FAILURE),
        (JobStatus("BOOT_FAIL"), EndKind.NODE_FAILURE, EndKind.NODE_FAILURE),
        (JobStatus("PREEMPTED", "None", "n1", "0:15"), EndKind.PREEMPTED, EndKind.PREEMPTED),
        (STATUSES["cancelled"], EndKind.CANCELLED, EndKind.CANCELLED),
        (STATUSES["cancelled while pending"], EndKind.CANCELLED, EndKind.CANCELLED),
        # It knows that the job ends and not yet why: that says nothing against the node.
        (STATUSES["ending after scancel"], EndKind.JOB_LOST, EndKind.NOT_STARTED),
        (STATUSES["killed"], EndKind.JOB_LOST, EndKind.JOB_LOST),
        (JobStatus("FAILED", "NonZeroExitCode", "n1", "137:0"), EndKind.JOB_LOST, EndKind.JOB_LOST),
        (STATUSES["failed"], EndKind.JOB_LOST, EndKind.NOT_STARTED),
        (STATUSES["completed"], EndKind.JOB_LOST, EndKind.NOT_STARTED),
        (JobStatus(GONE), EndKind.JOB_LOST, EndKind.NOT_STARTED),
        # Another cluster of the federation has started it: nobody has cancelled anything.
        (JobStatus("REVOKED"), EndKind.JOB_LOST, EndKind.NOT_STARTED),
        (JobStatus(UNKNOWN), EndKind.JOB_LOST, EndKind.NOT_STARTED),
    ],
    ids=lambda value: f"{value.state} {value.reason} {value.exit_code}" if isinstance(value, JobStatus) else value.name,
)
def test_the_end_of_a_job_has_a_name(status: JobStatus, once_begun: EndKind, before: EndKind) -> None:
    assert status.how_it_ended(had_begun=True) is once_begun
    assert status.how_it_ended(had_begun=False) is before


def test_a_job_that_slurm_forgot_is_over_and_one_it_says_nothing_of_is_not() -> None:
    assert JobStatus(GONE).is_over
    assert not JobStatus(UNKNOWN).is_over
    assert not any(JobStatus(state).is_over for state in (*WAITING_STATES, *ALIVE_STATES))


@pytest.mark.parametrize("state", ["POWER_UP_NODE", "EXPEDITING", "UPDATE_DB"])
def test_a_state_of_a_newer_slurm_is_no_end(state: str) -> None:
    assert not JobStatus(state).is_over


def test_every_state_that_has_a_name_as_an_end_is_one() -> None:
    assert all(JobStatus(state).is_over for state in ENDS)


def test_a_status_in_words_names_what_killed_the_job_and_nothing_empty() -> None:
    assert STATUSES["timeout"].describe() == "TIMEOUT TimeLimit exit code 0:9"
    assert STATUSES["completed"].describe() == "COMPLETED"
    assert STATUSES["failed"].describe() == "FAILED NonZeroExitCode"
    assert JobStatus(GONE).describe() == "GONE"


def as_dask_jobqueue_says_it(stderr: str) -> str:
    return (
        "Command exited with non-zero exit code.\nExit code: 1\nCommand:\nsbatch /tmp/tmp1.sh\n"
        f"stdout:\n\nstderr:\n{stderr}\n\n"
    )


# What sbatch of Slurm 22.05.8 printed.
NOT_AVAILABLE = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
MUNGE_IS_GONE = """\
sbatch: error: If munged is up, restart with --num-threads=10
sbatch: error: Munge encode failed: Failed to access "/run/munge/socket": No such file or directory
sbatch: error: slurm_send_node_msg: auth_g_create: REQUEST_SUBMIT_BATCH_JOB has authentication error
sbatch: error: Batch job submission failed: Protocol authentication error"""


@pytest.mark.parametrize(
    ("stderr", "words"),
    [
        (
            "sbatch: error: invalid partition specified: nosuch\n"
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "invalid partition specified: nosuch Batch job submission failed: Invalid partition name specified",
        ),
        (NOT_AVAILABLE, "Batch job submission failed: Requested node configuration is not available"),
        (
            f"sbatch: error: Memory specification can not be satisfied\n{NOT_AVAILABLE}",
            "Memory specification can not be satisfied "
            "Batch job submission failed: Requested node configuration is not available",
        ),
        (
            "sbatch: unrecognized option '--nosuch'\nTry \"sbatch --help\" for more information",
            "unrecognized option '--nosuch'",
        ),
        ("sbatch: error: Invalid --time specification", "Invalid --time specification"),
    ],
)
def test_a_refusal_is_told_in_slurms_words(stderr: str, words: str) -> None:
    assert refusal(as_dask_jobqueue_says_it(stderr)) == (EndKind.REFUSED, words)


@pytest.mark.parametrize(
    "stderr",
    [
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying",
        MUNGE_IS_GONE,
    ],
)
def test_a_controller_in_trouble_is_no_refusal(stderr: str) -> None:
    assert refusal(as_dask_jobqueue_says_it(stderr))[0] is EndKind.UNREACHABLE


# Of Slurm's own table of errors (strings of libslurmfull.so 22.05.8), by what each comes to.
FAILED = "sbatch: error: Batch job submission failed: "
SAID: dict[EndKind, list[str]] = {
    EndKind.UNREACHABLE: [
        "Slurm backup controller in standby mode",
        "Controller is in standby mode, try a different controller",
        "Protocol authentication error",
        "Invalid authentication credential",
        "Message send failure",
        "Message receive failure",
        "Communication connection failure",
        "Unable to contact slurm controller (receive failure)",
        "Zero Bytes were transmitted or received",
    ],
    EndKind.DEFERRED: [
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "Requested account has breached requested QOS usage threshold",
        "Required node not available (down, drained or reserved)",
        "Required partition not available (inactive or drain)",
        "Requested partition configuration not available now",
        "Unable to create job record, try again",
        "I/O error writing script/environment to file",
        "System submissions disabled",
        "Slurm internal error, contact system administrator",
        "Unspecified error",
        "Job script not specified",
        "Invalid user id",  # the directory of users does not answer
    ],
    EndKind.REFUSED: [
        "Invalid account or account/partition combination specified",
        "Invalid partition name specified",
        "Invalid qos specification",
        "Invalid feature specification",
        "Invalid generic resource (gres) specification",
        "Invalid license specification",
        "Invalid node name specified",
        "Invalid time-min specification (exceeds job's time or other limits)",
        "Requested node configuration is not available",
        "Requested time limit is invalid (missing or exceeds some limit)",
        "Time limit specification required, but not provided",
        "Memory required by task is not available",
        "CPU count specification invalid",
        "More processors requested than permitted",
        "User's group not permitted to use this partition",
        "Access denied to requested reservation",
        "Access/permission denied",
    ],
}


@pytest.mark.parametrize(
    ("words", "kind"), [pytest.param(words, kind, id=words) for kind, said in SAID.items() for words in said]
)
def test_only_a_mistake_that_is_known_as_one_is_a_refusal(words: str, kind: EndKind) -> None:
    assert refusal(as_dask_jobqueue_says_it(FAILED + words))[0] is kind


POLICY = FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        ("QOSMaxSubmitJobPerUserLimit", EndKind.DEFERRED),
        ("AssocMaxSubmitJobLimit", EndKind.DEFERRED),
        ("AssocGrpSubmitJobsLimit", EndKind.DEFERRED),
        ("QOSMaxWallDurationPerJobLimit", EndKind.REFUSED),
        ("AssocMaxCpuPerJobLimit", EndKind.REFUSED),
        ("QOSMaxMemoryPerJob", EndKind.REFUSED),
    ],
)
def test_a_limit_that_others_make_room_in_is_told_from_one_on_the_job_itself(limit: str, kind: EndKind) -> None:
    assert refusal(as_dask_jobqueue_says_it(f"sbatch: error: {limit}\n{POLICY}"))[0] is kind


def test_what_sbatch_did_not_say_is_told_as_it_is() -> None:
    # It was in PATH when the command began: its filesystem is away for a moment.
    said = "[Errno 2] No such file or directory: 'sbatch'"
    assert refusal(f"  {said}\n") == (EndKind.DEFERRED, said)


@pytest.mark.parametrize(
    ("reason", "is_hopeless"),
    [
        ("PartitionTimeLimit", True),
        ("PartitionNodeLimit", False),
        ("QOSMaxWallDurationPerJobLimit", True),
        ("AssocMaxWallDurationPerJobLimit", True),
        ("MaxMemPerLimit", True),
        ("QOSMaxMemoryPerNode", True),
        ("QOSMaxGRESPerJob", True),
        ("QOSMinGRES", True),
        ("AssocMaxNodePerJobLimit", True),
        ("BadConstraints", True),
        ("InvalidAccount", True),
        ("InvalidQOS", True),
        ("QOSNotAllowed", True),
        ("DependencyNeverSatisfied", True),
        ("Priority", False),
        ("Resources", False),
        ("Dependency", False),
        ("Licenses", False),
        ("JobHeldAdmin", False),
        ("JobHeldUser", False),
        ("ReqNodeNotAvail", False),
        ("Reservation", False),
        ("PartitionDown", False),
        ("QOSMaxJobsPerUserLimit", False),
        ("QOSMaxCpuPerUserLimit", False),
        ("AssocGrpCpuLimit", False),
        ("AssocMaxJobsLimit", False),
        ("QOSUsageThreshold", False),
        ("BeginTime", False),
        ("None", False),
        ("", False),
    ],
)
def test_a_job_waits_for_what_comes_or_for_what_never_comes(reason: str, is_hopeless: bool) -> None:
    assert JobStatus("PENDING", reason).is_hopeless is is_hopeless
    assert not JobStatus("RUNNING", reason).is_hopeless


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_slurm")
def test_without_slurms_commands_nothing_is_known_and_nobody_is_hurt(caplog: pytest.LogCaptureFixture) -> None:
    slurm = Slurm()
    assert slurm.status("7") == JobStatus(UNKNOWN)
    assert slurm.queue() is None
    assert not slurm.cancel("7", "8")
    assert not slurm.ask_to_leave("7")
    assert not slurm.put_off("7", "now")
    assert "scancel 7 8: " in caplog.text
    assert "scancel --batch --signal=USR1 7: " in caplog.text


@pytest.mark.usefixtures("no_slurm")
def test_no_jobs_need_no_scancel() -> None:
    assert Slurm().cancel()


GREETING = "-----\n  Welcome to the Example 77 Supercomputer\n--> Verifying valid submit host (login4)...OK\n"


@pytest.mark.parametrize(
    "printed",
    [
        "Submitted batch job 17\n",
        "17\n",
        "17;cluster\n",
        "Submitted batch job 17 on cluster x\n",
        f"{GREETING}Submitted batch job 17\n",
        f"{GREETING}17\n",
        "42\nSubmitted batch job 17\n3\n",
        "Submitted batch job 17\nYour project has used 1200 of 5000 hours.\n",
        "\x1b[1m2026\x1b[0m\r\nSubmitted batch job 17\r\n",
    ],
)
def test_the_number_of_a_job_is_read_among_whatever_a_wrapper_prints(printed: str) -> None:
    assert job_number(printed) == "17"


@pytest.mark.parametrize("printed", ["", GREETING, "Stapelauftrag 17 übermittelt\n", "17\n42\n"])
def test_a_number_that_nobody_said_is_not_guessed(printed: str) -> None:
    with pytest.raises(SubmissionError, match="did not say its number"):
        job_number(printed)


def test_a_wrappers_greeting_is_no_mistake_in_the_job() -> None:
    said = "NOTICE: invalid account names are removed on Monday\nsbatch: error: AssocMaxSubmitJobLimit"
    assert refusal(said)[0] is EndKind.DEFERRED


@pytest.mark.parametrize(
    "line",
    [
        b"41|PENDING||Priority|Pr\\xfcfung",
        b"41|PENDING||Priority|my\njob|x",
        b"CLUSTER: alpha",
        b"NOTE: 3|4|5|6|7",
        b"|||||",
    ],
)
def test_an_odd_line_of_squeue_hides_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes) -> None:
    command = tmp_path / "squeue"
    odd = line.decode().replace("\n", "\\n")
    command.write_text(
        f"#!/bin/bash\nprintf '{odd}\\n'\n[ -z \"$SQUEUE_FORMAT$SLURM_CLUSTERS\" ] && echo '7|RUNNING|n1|None|ours'\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("SLURM_CLUSTERS", "alpha")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    found = Slurm().queue()
    assert found is not None
    assert found["7"] == QueuedJob("ours", JobStatus("RUNNING", "None", "n1"))
    assert set(found) <= {"7", "41"}


@pytest.mark.parametrize("length", range(0, len(JOBS["completed"]), 40))
def test_half_an_answer_is_none(length: int) -> None:
    found = parse_job(JOBS["completed"][:length], "13")
    assert found.state in (UNKNOWN, "COMPLETED")
    assert parse_job(JOBS["completed"], "14") == JobStatus(UNKNOWN)  # of another job


def test_the_queue_is_one_question_whatever_the_jobs_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "squeue"
    command.write_text("#!/bin/sh\necho '7|RUNNING|n1|None|kdgat-a-1'\necho '8|PENDING||ReqNodeNotAvail, n2|b|n3'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert Slurm().queue() == {
        "7": QueuedJob("kdgat-a-1", JobStatus("RUNNING", "None", "n1")),
        "8": QueuedJob("b|n3", JobStatus("PENDING", "ReqNodeNotAvail, n2", "")),
    }
