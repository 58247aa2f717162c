from pathlib import Path

import pytest

from kdgat.cli.flow_run import print_attempts, report_end
from kdgat.cluster import AttemptLedger, EndKind
from kdgat.cluster.decision import Retry, Stop
from kdgat.run import OutputDirectory, RunEnd, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import RunDirectory
from tests.cluster.attempts import ended


def write_run(path: Path, state: StageState, message: str = "") -> OutputDirectory:
    record = StageRecord(name="normal-large-seed0", stage="normal", scale="large", seed=0, directory="stages/normal")
    record.state, record.message = state, message
    (path / "stages" / "normal").mkdir(parents=True)
    output = OutputDirectory(path)
    output.write_index(RunIndex(family="can", config={}, stages=[record]))
    return output


def no_results(output: OutputDirectory) -> None:
    pytest.fail("a run that failed has no results")


def attempt(output: OutputDirectory, kind: EndKind, decision: Retry | Stop) -> None:
    ledger = AttemptLedger(RunDirectory(output.stages_path / "normal"))
    ledger.close(ledger.open(None), ended(kind), decision)


def test_attempts_are_listed_where_a_stage_took_more_than_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = write_run(tmp_path, StageState.FINISHED)
    attempt(output, EndKind.JOB_LOST, Retry("again from the start of the stage", None))
    print_attempts(output, 0.0)
    assert capsys.readouterr().err == ""
    attempt(output, EndKind.FINISHED, Stop("finished"))
    print_attempts(output, 0.0)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "SlurmJobLost" in printed.err
    assert "again from the start of the stage" in printed.err


def test_a_stage_whose_job_was_refused_points_to_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = write_run(tmp_path, StageState.FAILED, "ERROR: Slurm refuses the job: Invalid account")
    output.slurm_path.mkdir()
    assert report_end(RunEnd("failed", ""), output, no_results) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: normal-large-seed0: Slurm refuses the job: Invalid account",
        f"what jobs printed: {output.slurm_path}",
    ]


def test_a_stage_that_failed_while_it_ran_points_to_its_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = write_run(tmp_path, StageState.FAILED, "BAD_INPUT: damaged")
    log = output.stages_path / "normal" / "stage.log"
    log.touch()
    assert report_end(RunEnd("failed", ""), output, no_results) == 1
    assert capsys.readouterr().err.splitlines()[1] == f"log:   {log}"
