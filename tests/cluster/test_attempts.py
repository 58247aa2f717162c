import resource
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kdgat.cluster import AttemptLedger, EndKind, Resources, Site, decide
from kdgat.cluster.attempts import EXCLUDED_FOR_S
from kdgat.cluster.decision import Decision, History, Retry, Stop
from kdgat.cluster.ending import AttemptEnd, Because
from kdgat.stage import FailureKind, RunDirectory, RunDirectoryError
from tests.cluster.attempts import CHECKPOINT, ended, failed, limited
from tests.support.faults import unwritable

ASKED = Resources(walltime_s=3600, memory_mib=4096, gpus=1, gpu_type="v100")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_attempts_survive_whoever_wrote_them(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    record = ledger.open(ASKED, frozenset({"n3", "n1"}))
    ledger.submitted(record, "41")
    ledger.started(record)
    ledger.close(record, ended(EndKind.HOST_OOM, progress=True, job_id="41", peak_memory_mib=4000), Retry("6G", ASKED))
    (found,) = AttemptLedger(directory).records
    assert found == record
    assert (found.number, found.resources, found.excluded_nodes) == (1, ASKED, ("n1", "n3"))
    assert (found.job_id, found.node, found.checkpoint) == ("41", "n1", CHECKPOINT)
    assert (found.end, found.message, found.peak_memory_mib) == ("HostOutOfMemory", "what was seen", 4000)
    assert found.decision == "6G"
    assert 0 < found.submitted <= found.started <= found.ended


def test_every_change_is_on_disk_at_once(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    record = ledger.open(ASKED)
    assert AttemptLedger(directory).records == [record]
    ledger.submitted(record, "41")
    assert AttemptLedger(directory).records[0].job_id == "41"
    ledger.started(record)
    assert AttemptLedger(directory).records[0].started > 0


def test_a_history_that_cannot_be_written_ends_no_attempt_and_is_whole_with_the_next_change(
    directory: RunDirectory,
) -> None:
    ledger = AttemptLedger(directory)
    with unwritable(directory.attempts_path):
        record = ledger.open(ASKED)
        ledger.submitted(record, "41")
    ledger.started(record)
    assert AttemptLedger(directory).records == [record]


def test_no_stage_that_starts_can_disturb_the_history_which_is_being_written(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    ledger.open(ASKED)
    with directory.path.joinpath("attempts.jsonl").open("rb") as before, directory.lock():
        ledger.open(ASKED)
        assert len(before.readlines()) == 2  # the same file: none takes its place that a stage could remove
    assert not list(directory.path.glob(".attempts*"))


def test_a_number_is_used_once_whatever_became_of_the_attempt(directory: RunDirectory) -> None:
    assert AttemptLedger(directory).open(None).number == 1
    ledger = AttemptLedger(directory)  # a flow that was started again, and one more
    assert ledger.open(None).number == 2
    assert AttemptLedger(directory).open(None).number == 3


def test_an_attempt_is_open_until_its_end_is_noted(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    closed, lost, still_open = ledger.open(ASKED), ledger.open(ASKED), ledger.open(ASKED)
    ledger.close(closed, ended(EndKind.FINISHED), Stop("finished"))
    ledger.submitted(lost, "42")
    assert AttemptLedger(directory).left_open() == [lost, still_open]
    ledger.abandon(lost, "FlowProcessLost", "job 42 is over", Because.SLURM)
    reopened = AttemptLedger(directory)
    assert reopened.left_open() == [still_open]
    assert (reopened.records[1].end, reopened.records[1].message) == ("FlowProcessLost", "job 42 is over")
    assert reopened.records[1].ended > 0


def test_a_job_is_not_forgotten_by_an_end_that_does_not_name_it(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    record = ledger.open(ASKED)
    ledger.submitted(record, "41")
    ledger.close(record, ended(EndKind.UNREACHABLE, job_id=""), Stop("no answer"))
    assert AttemptLedger(directory).records[0].job_id == "41"


def test_what_stops_is_told_from_what_goes_on(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    record = ledger.open(None)
    ledger.close(record, ended(EndKind.CANCELLED), Stop("somebody cancelled job 7"))
    assert AttemptLedger(directory).records[0].decision == "somebody cancelled job 7"


@pytest.mark.parametrize("content", [b'{"number": "first"}\n', b"[]"], ids=["no number", "a list"])
def test_a_damaged_history_is_named_with_what_to_do(directory: RunDirectory, content: bytes) -> None:
    directory.attempts_path.write_bytes(content)
    with pytest.raises(
        RunDirectoryError,
        match=r"is not what this kdgat writes .*another version wrote it.*remove it",
    ):
        AttemptLedger(directory)


@pytest.mark.parametrize("rest", [b"", b'{"number": 2, "resour', b"\xff\xfe", b"\0\0\0"])
def test_a_line_that_was_cut_short_costs_that_line(directory: RunDirectory, rest: bytes) -> None:
    first = AttemptLedger(directory).open(ASKED)
    with directory.attempts_path.open("ab") as file:
        file.write(rest)
    ledger = AttemptLedger(directory)
    assert ledger.records == [first]
    second = ledger.open(ASKED)
    assert AttemptLedger(directory).records == [first, second]


@pytest.mark.parametrize(
    "cut", [b"", b'{"number": 2, "resour', b'{"number": 2, "resources": {"walltime_s": 1}', b"\0\0"]
)
def test_records_that_share_a_line_after_a_crash_are_all_read(directory: RunDirectory, cut: bytes) -> None:
    ledger = AttemptLedger(directory)
    records = [ledger.open(ASKED), ledger.open(ASKED)]
    first, second = directory.attempts_path.read_bytes().splitlines()
    directory.attempts_path.write_bytes(first + cut + second + b"\n")
    assert AttemptLedger(directory).records == records


def test_a_disk_that_is_full_in_the_middle_of_a_line_loses_nothing(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    record = ledger.open(ASKED)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (directory.attempts_path.stat().st_size + 100, hard))
    try:
        ledger.submitted(record, "41")
        ledger.started(record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert directory.attempts_path.read_bytes()[-1:] != b"\n"
    assert AttemptLedger(directory).records[0].job_id == ""
    other = ledger.open(ASKED)
    assert AttemptLedger(directory).records == [record, other]


def test_the_cost_of_a_note_does_not_grow_with_the_history(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)

    def attempts(number: int) -> float:
        began = time.process_time()
        for _ in range(number):
            history = ledger.history(ASKED, NO_LIMITS)
            end = ended(EndKind.PREEMPTED)
            ledger.close(ledger.open(history.resources), end, decide(end, history, NO_LIMITS))
        return time.process_time() - began

    first_s = attempts(50)
    attempts(500)
    assert attempts(50) < 5 * first_s + 0.1  # was 20 times as much, and 69 s for 2,000 attempts
    assert len(AttemptLedger(directory).records) == 600


# What the next attempt, and the next command, knows.

NO_LIMITS = limited()


class Command:
    """One command's view of a stage; making another one is giving the command again."""

    def __init__(self, directory: RunDirectory, asked: Resources | None = ASKED, site: Site = NO_LIMITS):
        self.ledger, self.asked, self.site = AttemptLedger(directory), asked, site

    @property
    def history(self) -> History:
        return self.ledger.history(self.asked, self.site)

    def after(self, *ends: AttemptEnd) -> Decision:
        for end in ends:
            history = self.history
            decision = decide(end, history, self.site)
            self.ledger.close(self.ledger.open(history.resources, history.excluded_nodes), end, decision)
        return decision


def with_memory(memory_mib: int) -> Resources:
    return ASKED.model_copy(update={"memory_mib": memory_mib})


OUT_OF_MEMORY, LOST, TIMEOUT = ended(EndKind.HOST_OOM), ended(EndKind.JOB_LOST), ended(EndKind.TIMEOUT)
CANNOT_START = ended(EndKind.CANNOT_START, node="", message="PENDING MaxMemPerLimit")


def test_memory_that_grew_is_asked_for_by_the_next_command(directory: RunDirectory) -> None:
    Command(directory).after(OUT_OF_MEMORY, OUT_OF_MEMORY)
    assert Command(directory).history.resources == with_memory(9216)
    assert Command(directory, with_memory(20_000)).history.resources == with_memory(20_000)
    assert Command(directory, site=limited(memory_mib=8192)).history.resources == with_memory(8192)
    small = limited(memory_mib=1024)  # of another site
    assert Command(directory, site=small).history.resources == ASKED


def test_what_a_person_asked_for_once_is_not_what_was_learnt(directory: RunDirectory) -> None:
    Command(directory, ASKED.model_copy(update={"walltime_s": 50_000})).after(OUT_OF_MEMORY)
    assert Command(directory).history.resources == with_memory(6144)


def test_walltime_that_grew_is_asked_for_by_the_next_command(directory: RunDirectory) -> None:
    Command(directory).after(TIMEOUT, TIMEOUT)
    assert Command(directory).history.resources == ASKED.model_copy(update={"walltime_s": 7200})


def test_a_bigger_gpu_is_asked_for_until_a_person_names_another(directory: RunDirectory) -> None:
    site = limited(bigger_gpu_types=("a100", "h100"))
    Command(directory, site=site).after(failed(FailureKind.CUDA_OOM), failed(FailureKind.CUDA_OOM))
    assert Command(directory, site=site).history.resources == ASKED.model_copy(update={"gpu_type": "h100"})
    asked = ASKED.model_copy(update={"gpu_type": "mi300"})
    assert Command(directory, asked, site).history.resources == asked


def test_a_process_on_this_machine_asks_for_nothing(directory: RunDirectory) -> None:
    Command(directory).after(OUT_OF_MEMORY)
    assert Command(directory, None).history.resources is None


def test_what_slurm_grants_no_job_is_undone_and_not_asked_for_again(directory: RunDirectory) -> None:
    command = Command(directory)
    command.after(OUT_OF_MEMORY)
    assert (command.history.resources, command.history.unescalated) == (with_memory(6144), ASKED)
    decision = command.after(CANNOT_START)
    assert isinstance(decision, Retry)
    assert (command.history.resources, command.history.unescalated) == (ASKED, None) == (decision.resources, None)
    assert isinstance(command.after(replace(OUT_OF_MEMORY, made_progress=True)), Stop)
    again = Command(directory)  # by the next command it may be granted
    assert isinstance(again.after(OUT_OF_MEMORY), Retry)
    assert again.history.resources == with_memory(6144)


def test_nodes_stay_left_out_for_a_while_also_in_the_next_command(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    Command(directory).after(ended(EndKind.NODE_FAILURE))
    now += 3600
    Command(directory).after(LOST, ended(EndKind.NODE_FAILURE, node="n2"))
    assert Command(directory).history.excluded_nodes == {"n1", "n2"}
    now += EXCLUDED_FOR_S - 3600
    command = Command(directory)
    assert command.history.excluded_nodes == {"n2"}
    command.after(ended(EndKind.NODE_FAILURE, progress=True))  # on n1, which was tried again
    now += 3601
    # The attempt was made without n2, longer than that is left out: nobody has blamed it again.
    assert command.history.excluded_nodes == Command(directory).history.excluded_nodes == {"n1"}


def test_nodes_are_all_tried_again_where_none_is_left(directory: RunDirectory) -> None:
    Command(directory).after(ended(EndKind.NODE_FAILURE), ended(EndKind.REFUSED, node=""))
    assert Command(directory).history.excluded_nodes == frozenset()


def test_attempts_are_counted_over_commands(directory: RunDirectory) -> None:
    crashed = ended(EndKind.PROCESS_KILLED, signal=signal.SIGSEGV)
    assert isinstance(Command(directory).after(crashed), Retry)
    assert isinstance(Command(directory).after(failed(FailureKind.ENVIRONMENT), crashed), Retry)
    assert isinstance(Command(directory).after(crashed), Stop)
    (directory.path / "checkpoints").mkdir()
    assert isinstance(Command(directory).after(replace(crashed, made_progress=True)), Retry)
    assert isinstance(Command(directory).after(crashed), Retry)


@pytest.mark.parametrize("end", [ended(EndKind.UNREACHABLE), ended(EndKind.DEFERRED)])
def test_who_gives_the_command_again_waits_for_slurm_anew(directory: RunDirectory, end: AttemptEnd) -> None:
    site = limited(submit_timeout_s=30)
    assert isinstance(Command(directory, site=site).after(*[end] * 4), Stop)
    decision = Command(directory, site=site).after(end)
    assert isinstance(decision, Retry)
    assert decision.delay_s == 5.0


def test_what_an_attempt_whose_flow_died_has_reached_is_progress(directory: RunDirectory) -> None:
    Command(directory).after(LOST, LOST)
    ledger = AttemptLedger(directory)
    ledger.abandon(ledger.open(ASKED), "FlowProcessLost", "job 42 is over", Because.SLURM)
    assert len(Command(directory).history.ends) == 2
    checkpoint = directory.path / CHECKPOINT
    checkpoint.parent.mkdir()
    checkpoint.touch()
    ledger.abandon(ledger.open(ASKED), "FlowProcessLost", "job 43 is over", Because.SLURM)
    assert Command(directory).history.ends == ()
    assert AttemptLedger(directory).records[-1].checkpoint == CHECKPOINT


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ends=st.lists(
        st.sampled_from(
            [
                OUT_OF_MEMORY,
                TIMEOUT,
                LOST,
                CANNOT_START,
                ended(EndKind.NODE_FAILURE),
                ended(EndKind.REFUSED, node=""),
                failed(FailureKind.CUDA_OOM),
                ended(EndKind.PAUSED, progress=True),
            ]
        ),
        max_size=12,
    )
)
def test_what_was_decided_is_what_is_asked_for_next(
    tmp_path_factory: pytest.TempPathFactory, ends: list[AttemptEnd]
) -> None:
    directory = RunDirectory(tmp_path_factory.mktemp("run"))
    command = Command(directory, site=limited(walltime_s=20_000, bigger_gpu_types=("a100", "h100")))
    for end in ends:
        decision = command.after(end)
        if not isinstance(decision, Retry):
            return
        assert command.history.resources == decision.resources
        assert command.history.excluded_nodes == decision.excluded_nodes
        restored = Command(directory, site=command.site).history
        assert replace(restored, refused=None) == replace(command.history, refused=None)
