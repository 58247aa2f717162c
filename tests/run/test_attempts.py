import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kdgat.cluster import AttemptLedger, EndKind, Resources
from kdgat.cluster.decision import Retry, Stop
from kdgat.cluster.ending import Because
from kdgat.run import OutputDirectory, StageRecord
from kdgat.run.attempts import attempt_rows, filled_columns, repeated_rows
from kdgat.run.directory import RunIndex
from kdgat.stage import RunDirectory
from tests.can.small_runs import make_config
from tests.cluster.attempts import CHECKPOINT, ended

At = Callable[[float], None]
ASKED = Resources(walltime_s=3600, memory_mib=4096, cores=2, gpus=1, gpu_type="v100")


@pytest.fixture
def output(tmp_path: Path) -> OutputDirectory:
    output = OutputDirectory(tmp_path)
    names = ["prepare", "normal", "evaluation"]
    stages = [StageRecord(name=name, stage=name, scale="large", seed=0) for name in names]
    for stage in stages[:2]:
        stage.directory = f"stages/{stage.name}"
        (tmp_path / stage.directory).mkdir(parents=True)
    config = make_config("quick", (), data={"dataset": "synthetic", "data_root": "data"})
    output.write_index(RunIndex(family="can", config=config.model_dump(mode="json"), stages=stages))
    return output


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> At:
    """Set the clock, in seconds since the epoch."""
    return lambda now: monkeypatch.setattr(time, "time", lambda: now)


def ledger_of(output: OutputDirectory, name: str) -> AttemptLedger:
    return AttemptLedger(RunDirectory(output.stages_path / name))


def test_the_table_lists_the_attempts_in_the_order_of_the_plan(output: OutputDirectory, at: At) -> None:
    ledger = ledger_of(output, "normal")
    first = ledger.open(ASKED)
    at(1000)
    ledger.submitted(first, "7")
    at(1060)
    ledger.started(first)
    at(1090)
    ledger.close(
        first, ended(EndKind.HOST_OOM, progress=True, peak_memory_mib=4000), Retry("4G were not enough", ASKED)
    )
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
        "waited": "1 min 0 s",
        "ran": "30 s",
        "peak memory": "4000 MiB",
        "end": "HostOutOfMemory",
        "checkpoint": CHECKPOINT,
        "what followed": "4G were not enough",
    }
    assert second_row["end"] == "Completed"


def test_an_attempt_without_a_job_leaves_its_columns_empty(output: OutputDirectory) -> None:
    ledger = ledger_of(output, "prepare")
    ledger.close(ledger.open(None), ended(EndKind.PROCESS_KILLED, job_id="", node=""), Stop("no progress"))
    (row,) = attempt_rows(output)
    columns = ("job", "node", "asked for", "waited", "ran", "peak memory", "checkpoint")
    assert [row[column] for column in columns] == [""] * 7


def test_a_job_that_never_began_waited_until_its_end(output: OutputDirectory, at: At) -> None:
    ledger = ledger_of(output, "normal")
    record = ledger.open(ASKED)
    at(1000)
    ledger.submitted(record, "7")
    at(1250)
    ledger.close(record, ended(EndKind.CANCELLED, node=""), Stop("somebody cancelled job 7"))
    (row,) = attempt_rows(output)
    assert (row["waited"], row["ran"], row["job"], row["node"]) == ("4 min 10 s", "", "7", "")


def test_attempts_of_earlier_runs_and_open_ones_are_left_out(output: OutputDirectory, at: At) -> None:
    ledger = ledger_of(output, "normal")
    old, new = ledger.open(ASKED), ledger.open(ASKED)
    ledger.open(ASKED)
    for record, now in ((old, 1000), (new, 2000)):
        at(now)
        ledger.close(record, ended(EndKind.PAUSED), Retry("again", ASKED))
    assert [row["attempt"] for row in attempt_rows(output, started=1500.0)] == ["2"]


def test_an_attempt_whose_flow_died_says_what_was_found_of_it(output: OutputDirectory) -> None:
    ledger = ledger_of(output, "normal")
    ledger.abandon(ledger.open(ASKED), "FlowProcessLost", "job 7 is over", Because.SLURM)
    (row,) = attempt_rows(output)
    assert (row["end"], row["what followed"]) == ("FlowProcessLost", "job 7 is over")


def test_an_attempt_that_still_runs_is_left_out(output: OutputDirectory) -> None:
    ledger_of(output, "normal").open(ASKED)
    assert attempt_rows(output) == []


def test_only_stages_with_more_than_one_attempt_are_repeated() -> None:
    rows = [{"stage": "prepare", "attempt": "1"}, {"stage": "normal", "attempt": "1"}]
    assert repeated_rows(rows) == []
    rows.append({"stage": "normal", "attempt": "2"})
    assert repeated_rows(rows) == rows[1:]


def test_columns_of_which_no_attempt_says_anything_are_left_out(output: OutputDirectory, at: At) -> None:
    ledger = ledger_of(output, "normal")
    record = ledger.open(None)
    at(1000)
    ledger.started(record)
    at(1045)
    ledger.close(record, ended(EndKind.FINISHED, job_id="", node=""), Stop("finished"))
    (row,) = filled_columns(attempt_rows(output))
    assert {"stage", "attempt", "end", "ran", "what followed"} <= set(row)
    assert not {"job", "node", "waited", "asked for"} & set(row)
    assert filled_columns([]) == []
