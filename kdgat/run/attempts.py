"""The attempts at the stages of a run as rows of a table: what was asked for, what happened, what followed."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from kdgat.base.text import describe_seconds
from kdgat.cluster import AttemptLedger, AttemptRecord
from kdgat.cluster.attempts import OPEN
from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState


def attempt_rows(output: OutputDirectory, started: float = 0.0) -> list[dict[str, str]]:
    """List the attempts at the stages of a run that ended after `started` (seconds since the epoch), in its order."""
    return [
        _row(stage.name, record)
        for stage in output.read_index().stages
        for record in attempts_at(output, stage)
        if record.end != OPEN and record.ended >= started
    ]


def attempts_at(output: OutputDirectory, stage: StageRecord) -> Sequence[AttemptRecord]:
    """Return all attempts at a stage of a run, whichever command made them."""
    return AttemptLedger(output.stage_directory(stage)).records if stage.directory else ()


def begun(output: OutputDirectory, index: RunIndex) -> str:
    """Return when the first attempt at a stage of a run began; before there is any, when its command did."""
    started = [record.started for stage in index.stages for record in attempts_at(output, stage) if record.started]
    return datetime.fromtimestamp(min(started), UTC).isoformat(timespec="seconds") if started else index.created


def seconds_run(output: OutputDirectory, stages: Sequence[StageRecord]) -> float:
    """Return in how many seconds stages of a run trained, side by side or not; attempts that go on last until now."""
    spans = sorted(
        (record.started, time.time() if record.end == OPEN else record.ended)
        for stage in stages
        for record in attempts_at(output, stage)
        if record.started and (record.end != OPEN or stage.state == StageState.RUNNING)
    )
    total = last = 0.0
    for began, ended in spans:
        total += max(0.0, ended - max(began, last))
        last = max(last, ended)
    return total


def repeated_rows(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Choose the rows of stages that needed more than one attempt."""
    names = [row["stage"] for row in rows]
    return [row for row in rows if names.count(row["stage"]) > 1]


def filled_columns(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Leave out what no row says anything of: a run on this machine has neither jobs nor nodes."""
    names = [name for name in rows[0] if any(row[name] for row in rows)] if rows else []
    return [{name: row[name] for name in names} for row in rows]


def _row(stage_name: str, record: AttemptRecord) -> dict[str, str]:
    waited_s = (record.started or record.ended) - record.submitted if record.submitted else 0.0
    ran_s = record.ended - record.started if record.started else 0.0
    return {
        "stage": stage_name,
        "attempt": str(record.number),
        "end": record.end,
        "job": record.job_id,
        "node": record.node,
        "waited": describe_seconds(waited_s) if record.submitted else "",
        "ran": describe_seconds(ran_s) if record.started else "",
        "peak memory": f"{record.peak_memory_mib} MiB" if record.peak_memory_mib else "",
        "asked for": record.resources.describe() if record.resources is not None else "",
        "checkpoint": record.checkpoint,
        "what followed": record.decision or record.message,  # of an attempt whose flow died: what was found of it
    }
