import logging
from pathlib import Path

import pytest
from prefect.client.schemas.objects import StateType

from flows.attempts import AttemptResult
from flows.shown_attempts import (
    OUTER_LOG,
    ProgressArtifact,
    StageLines,
    StageLog,
    TotalProgress,
    attempt_state,
    publish_attempts,
)
from kdgat.cluster import AttemptLedger, EndKind, Resources
from kdgat.cluster.decision import Retry, Stop
from kdgat.run import OutputDirectory, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.stage import RunDirectory
from tests.cluster.attempts import CHECKPOINT, ended

ASKED = Resources(walltime_s=3600, memory_mib=4096, cores=2, gpus=1, gpu_type="v100")
# Of everything that is no success Prefect shows the colour of its type: what is lost comes back, what failed does not.
TYPES = {
    EndKind.FINISHED: StateType.COMPLETED,
    EndKind.PAUSED: StateType.COMPLETED,
    EndKind.DETACHED: StateType.COMPLETED,
    EndKind.CANCELLED: StateType.CANCELLED,
    EndKind.FAILED: StateType.FAILED,
    EndKind.REFUSED: StateType.FAILED,
}


@pytest.mark.parametrize("kind", EndKind)
def test_a_state_is_named_after_what_happened(kind: EndKind) -> None:
    state = attempt_state(AttemptResult(ended(kind, progress=True), Retry("again from there", ASKED)))
    assert state.type == TYPES.get(kind, StateType.CRASHED)
    assert state.name == kind.value


def test_a_state_says_where_from_which_checkpoint_and_what_follows() -> None:
    end = ended(EndKind.TIMEOUT, progress=True, message="TIMEOUT TimeLimit")
    state = attempt_state(AttemptResult(end, Retry("again from there", ASKED)))
    assert state.message == f"job 7 on n1; TIMEOUT TimeLimit; last checkpoint {CHECKPOINT} -> again from there"


def test_a_finished_attempt_has_nothing_to_follow_and_leaves_its_metrics_to_the_stage() -> None:
    state = attempt_state(AttemptResult(ended(EndKind.FINISHED, message="f1 0.99"), Stop("finished")))
    assert state.message == "job 7 on n1; finished"


def test_a_checkpoint_that_the_decision_names_is_not_named_twice() -> None:
    end = ended(EndKind.JOB_LOST, progress=True, message="its worker is gone")
    state = attempt_state(AttemptResult(end, Retry(f"again from {CHECKPOINT}", ASKED)))
    assert state.message == f"job 7 on n1; its worker is gone -> again from {CHECKPOINT}"


def test_an_attempt_without_a_job_names_none() -> None:
    end = ended(EndKind.PROCESS_KILLED, job_id="", node="", message="killed by SIGKILL")
    state = attempt_state(AttemptResult(end, Stop("no progress")))
    assert state.message == "killed by SIGKILL; no checkpoint yet -> no progress"


TRAINING = {"epoch": 2, "max_epochs": 10, "loss": 0.25, "graphs_per_s": 80.0, "seconds_to_deadline": 90.0}


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, str]]:
    """What the Prefect API would be told, of percent and words."""
    told: list[tuple[float, str]] = []

    def create(percent: float, key: str, description: str) -> str:
        told.append((percent, description))
        return key

    monkeypatch.setattr("flows.shown_attempts.create_progress_artifact", create)
    monkeypatch.setattr(
        "flows.shown_attempts.update_progress_artifact", lambda key, p, description: create(p, key, description)
    )
    return told


def test_a_progress_bar_ends_with_what_happened_and_what_follows(shows: list[tuple[float, str]]) -> None:
    bar = ProgressArtifact("normal")
    bar(TRAINING)
    bar.close(AttemptResult(ended(EndKind.JOB_LOST, message="worker gone"), Retry("again from there", ASKED)))
    assert shows == [
        (20.0, "epoch 3/10, loss 0.25, 80 graphs/s, 1 min 30 s to deadline"),
        (
            20.0,
            "SlurmJobLost at epoch 3/10, loss 0.25: job 7 on n1; worker gone; no checkpoint yet -> again from there",
        ),
    ]


def test_a_stage_that_finished_early_has_a_full_bar(shows: list[tuple[float, str]]) -> None:
    bar = ProgressArtifact("normal")
    bar(TRAINING)
    bar.close(AttemptResult(ended(EndKind.FINISHED, message="f1 0.99"), Stop("finished")))
    assert shows[-1] == (100.0, "Completed: job 7 on n1; f1 0.99")


def test_a_job_that_was_refused_says_so_though_it_made_no_progress(shows: list[tuple[float, str]]) -> None:
    end = ended(EndKind.REFUSED, job_id="", node="", message="Invalid account")
    ProgressArtifact("normal").close(AttemptResult(end, Stop("Slurm refuses the job")))
    assert shows == [(0.0, "SlurmSubmitRefused: Invalid account; no checkpoint yet -> Slurm refuses the job")]


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("2026-11-21 12:31:13,375 INFO kdgat.stage.runner: start", logging.INFO, "kdgat.stage.runner: start"),
        ("2026-11-21 12:31:13,375 WARNING kdgat.training: disk full", logging.WARNING, "kdgat.training: disk full"),
        ("ModuleNotFoundError: No module named 'h5py'", logging.INFO, "ModuleNotFoundError: No module named 'h5py'"),
    ],
)
def test_a_line_of_the_stage_keeps_its_level_and_has_one_time(
    line: str, level: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    StageLines(logging.getLogger("stage"))(line)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, text)]


def test_prefect_keeps_warnings_with_what_follows_and_one_other_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("flows.shown_attempts.time.monotonic", lambda: now)
    caplog.set_level(logging.INFO)
    log = StageLines(logging.getLogger("stage"))

    def lines(*texts: str) -> list[str]:
        """Log lines; return those that Prefect keeps."""
        caplog.clear()
        for text in texts:
            log(text)
        assert len(caplog.records) == len(texts)  # on the terminal, all of them
        return [record.getMessage() for record in caplog.records if vars(record)["send_to_api"]]

    at = "2026-11-21 12:31:13,375"
    assert lines("cannot open shared object file", "Aborted") == ["cannot open shared object file", "Aborted"]
    assert lines(f"{at} INFO epoch 1", "a bar", f"{at} INFO epoch 2") == ["epoch 1"]
    assert lines(f"{at} WARNING disk full", "of 1 GB", f"{at} INFO epoch 3", "a bar") == ["disk full", "of 1 GB"]
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 1"]
    assert lines(f"{at} INFO epoch 4", *traceback) == traceback
    now += 61.0
    metrics = "kdgat.stage.runner: finished: f1 0.99"  # the state of the stage says them, too
    assert lines(f"{at} INFO {metrics}", f"{at} INFO epoch 5", f"{at} INFO epoch 6") == ["epoch 5"]


def test_a_whole_run_shows_stages_that_are_done_that_run_and_that_are_to_come(shows: list[tuple[float, str]]) -> None:
    names = ["prepare", "normal", "autoencoder", "evaluation"]
    stages = [StageRecord(name=name, stage=name, scale="large", seed=0) for name in names]
    total = TotalProgress("hcrl_sa")
    total(stages)
    total(stages)  # nothing new: no request
    stages[0].state, stages[1].state = StageState.CACHED, StageState.RUNNING
    total(stages)
    for stage, state in zip(stages[1:], (StageState.PAUSED, StageState.FAILED, StageState.BLOCKED), strict=True):
        stage.state = state
    total(stages)
    assert shows == [
        (0.0, "0 of 4 stages done; to come: prepare, normal, autoencoder, evaluation"),
        (25.0, "1 of 4 stages done; running: normal; to come: autoencoder, evaluation"),
        (25.0, "1 of 4 stages done; paused: normal; failed: autoencoder; not started: evaluation"),
    ]


def test_the_flow_run_that_a_run_is_a_part_of_logs_once_when_a_stage_starts_and_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stages = [StageRecord(name=name, stage=name, scale="large", seed=0) for name in ("prepare", "normal")]
    outer = OUTER_LOG.set(logging.getLogger("night"))
    told = StageLog()
    OUTER_LOG.reset(outer)
    silent = StageLog()  # where it is no part of another
    with caplog.at_level(logging.INFO):
        for state in (StageState.PLANNED, StageState.RUNNING, StageState.FINISHED):
            stages[0].state = state
            told(stages)
            told(stages)
            silent(stages)
        stages[1].state, stages[1].message = StageState.FAILED, "BAD_INPUT: x.csv is empty"
        told(stages)
    assert caplog.messages == [
        "prepare is running, 0 of 2 stages are done",
        "prepare is finished, 1 of 2 stages are done",
        "normal is failed, 1 of 2 stages are done: x.csv is empty",
    ]


def test_the_table_of_attempts_has_no_column_that_a_page_cuts_and_sentences_stand_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, str] = {}
    monkeypatch.setattr(
        "flows.shown_attempts.create_markdown_artifact", lambda text, key, description: told.update({key: text})
    )
    output = OutputDirectory(tmp_path)
    stage = StageRecord(name="normal", stage="normal", scale="large", seed=0, directory="stages/normal")
    (output.stages_path / "normal").mkdir(parents=True)
    output.write_index(RunIndex(family="can", config={}, stages=[stage]))
    ledger = AttemptLedger(RunDirectory(output.stages_path / "normal"))
    lost = ended(EndKind.JOB_LOST, job_id="", node="", progress=True, peak_memory_mib=277)
    ledger.close(ledger.open(None), lost, Retry(f"again from {CHECKPOINT}", None))
    publish_attempts(output, 0.0, "synthetic")
    lines = told["attempts-synthetic"].splitlines()
    headings = [word.strip() for word in lines[0].strip("|").split("|")]
    assert {"stage", "attempt", "end", "peak memory"} <= set(headings)
    assert not {"job", "node", "checkpoint", "what followed"} & set(headings), "empty here, or too long for a column"
    assert "277 MiB" in lines[2]
    assert any(line.startswith("* normal, attempt 1: again from ") for line in lines[3:])
