from pathlib import Path

import pytest

from kdgat.cluster.decision import Retry, Stop
from kdgat.cluster.ending import EndKind
from kdgat.cluster.history import AttemptLedger
from kdgat.cluster.resources import Resources
from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import RunDirectoryError
from tests.cluster.attempts import CHECKPOINT, ended
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


def test_a_stage_that_starts_leaves_the_history_alone_which_is_being_written(directory: RunDirectory) -> None:
    ledger = AttemptLedger(directory)
    writing = directory.path / ".attempts.json.login.17.tmp"  # of the flow, on another machine
    writing.touch()
    with directory.lock():
        assert writing.exists()
    ledger.open(ASKED)  # the flow itself, after it was killed and started again
    assert not writing.exists()


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
    ledger.abandon(lost, "FlowProcessLost", "job 42 is over")
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


@pytest.mark.parametrize(
    "content",
    [b"", b'{"attempts": [{"number": 1', b'{"attempts": [{"number": 1, "colour": "red"}]}', b"\xff\xfe", b"[]"],
    ids=["empty", "cut short", "unknown key", "no text", "a list"],
)
def test_a_damaged_history_is_named_with_what_to_do(directory: RunDirectory, content: bytes) -> None:
    directory.attempts_path.write_bytes(content)
    with pytest.raises(RunDirectoryError, match=r"(?s)attempts\.json is damaged.*remove it"):
        AttemptLedger(directory)
