from pathlib import Path

import pytest
from prefect.client.schemas.objects import StateType

from flows.attempts import Performed
from flows.shown_attempts import ProgressArtifact, attempt_rows, attempt_state
from kdgat.can.config import make_config
from kdgat.can.run import OutputDirectory, RunIndex, StageRecord
from kdgat.cluster.decision import Retry, Stop
from kdgat.cluster.ending import EndKind
from kdgat.cluster.history import AttemptLedger
from kdgat.cluster.resources import Resources
from kdgat.stage.directory import RunDirectory
from tests.kdgat_cluster.attempts import CHECKPOINT, ended

ASKED = Resources(walltime_s=3600, memory_mib=4096, cores=2, gpus=1, gpu_type="v100")
# Of everything that is no success Prefect shows the colour of its type: what is lost comes back, what failed does not.
TYPES = {
    EndKind.FINISHED: StateType.COMPLETED,
    EndKind.PAUSED: StateType.COMPLETED,
    EndKind.CANCELLED: StateType.CANCELLED,
    EndKind.FAILED: StateType.FAILED,
    EndKind.REFUSED: StateType.FAILED,
}


@pytest.mark.parametrize("kind", EndKind)
def test_a_state_is_named_after_what_happened(kind: EndKind) -> None:
    state = attempt_state(Performed(ended(kind, progress=True), Retry("again from there", ASKED)))
    assert state.type == TYPES.get(kind, StateType.CRASHED)
    assert state.name == kind.value


def test_a_state_says_where_from_which_checkpoint_and_what_follows() -> None:
    end = ended(EndKind.TIMEOUT, progress=True, message="TIMEOUT TimeLimit")
    state = attempt_state(Performed(end, Retry("again from there", ASKED)))
    assert state.message == f"job 7 on n1; TIMEOUT TimeLimit; last checkpoint {CHECKPOINT} -> again from there"


def test_a_finished_attempt_has_nothing_to_follow() -> None:
    state = attempt_state(Performed(ended(EndKind.FINISHED, message="f1 0.99"), Stop("finished")))
    assert state.message == "job 7 on n1; f1 0.99; no checkpoint yet"


def test_an_attempt_without_a_job_names_none() -> None:
    end = ended(EndKind.PROCESS_KILLED, job_id="", node="", message="killed by SIGKILL")
    state = attempt_state(Performed(end, Stop("no progress")))
    assert state.message == "killed by SIGKILL; no checkpoint yet -> no progress"


def test_a_progress_bar_is_named_after_its_stage() -> None:
    assert ProgressArtifact("distill_gat-small-seed0").key == "distill-gat-small-seed0"  # Prefect takes no underscore


@pytest.fixture
def output(tmp_path: Path) -> OutputDirectory:
    output = OutputDirectory(tmp_path)
    names = ["prepare", "normal", "evaluation"]
    stages = [StageRecord(name=name, stage=name, scale="large", seed=0) for name in names]
    for stage in stages[:2]:
        stage.directory = f"stages/{stage.name}"
        (tmp_path / stage.directory).mkdir(parents=True)
    config = make_config("quick", (), data={"dataset": "synthetic", "data_root": "data"})
    output.write_index(RunIndex(config=config.model_dump(mode="json"), stages=stages))
    return output


def ledger_of(output: OutputDirectory, name: str) -> AttemptLedger:
    return AttemptLedger(RunDirectory(output.stages_path / name))


def test_the_table_lists_the_attempts_in_the_order_of_the_plan(output: OutputDirectory) -> None:
    ledger = ledger_of(output, "normal")
    first = ledger.open(ASKED)
    first.submitted, first.started = 1000.0, 1060.0
    ledger.close(
        first, ended(EndKind.HOST_OOM, progress=True, peak_memory_mib=4000), Retry("4G were not enough", ASKED)
    )
    first.ended = 1090.0
    ledger.close(ledger.open(ASKED), ended(EndKind.FINISHED), Stop("finished"))
    first_row, second_row = attempt_rows(output)
    ledger = ledger_of(output, "prepare")
    ledger.close(ledger.open(None), ended(EndKind.FINISHED, job_id="", node=""), Stop("finished"))
    assert [(row["stage"], row["attempt"]) for row in attempt_rows(output)] == [
        ("prepare", "1"),
        ("normal", "1"),
        ("normal", "2"),
    ]
    assert first_row == {
        "stage": "normal",
        "attempt": "1",
        "job": "7",
        "node": "n1",
        "asked for": "01:00:00, 4G, 2 cores, 1 GPU (v100)",
        "waited": "60 s",
        "ran": "30 s",
        "peak memory": "4000 MiB",
        "end": "HostOutOfMemory",
        "checkpoint": CHECKPOINT,
        "what followed": "again: 4G were not enough",
    }
    assert second_row["end"] == "Completed"


def test_an_attempt_without_a_job_leaves_its_columns_empty(output: OutputDirectory) -> None:
    ledger = ledger_of(output, "prepare")
    ledger.close(ledger.open(None), ended(EndKind.PROCESS_KILLED, job_id="", node=""), Stop("no progress"))
    (row,) = attempt_rows(output)
    columns = ("job", "node", "asked for", "waited", "ran", "peak memory", "checkpoint")
    assert [row[column] for column in columns] == ["-", "-", "-", "0 s", "0 s", "-", "-"]


def test_a_job_that_never_began_waited_until_its_end(output: OutputDirectory) -> None:
    ledger = ledger_of(output, "normal")
    record = ledger.open(ASKED)
    ledger.submitted(record, "7")
    ledger.close(record, ended(EndKind.CANCELLED, node=""), Stop("somebody cancelled job 7"))
    record.submitted, record.ended = 1000.0, 1250.0
    ledger.started(ledger.open(ASKED))  # writes both down
    row, _ = attempt_rows(output)
    assert (row["waited"], row["ran"], row["job"], row["node"]) == ("250 s", "0 s", "7", "-")


def test_attempts_of_earlier_runs_and_open_ones_are_left_out(output: OutputDirectory) -> None:
    ledger = ledger_of(output, "normal")
    old, new = ledger.open(ASKED), ledger.open(ASKED)
    ledger.open(ASKED)
    for record in (old, new):
        ledger.close(record, ended(EndKind.PAUSED), Retry("again", ASKED))
    old.ended, new.ended = 1000.0, 2000.0
    ledger.close(new, ended(EndKind.PAUSED), Retry("again", ASKED))  # writes both down
    assert [row["attempt"] for row in attempt_rows(output, started=1500.0)] == ["2"]
