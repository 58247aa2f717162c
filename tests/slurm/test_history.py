"""A run asks for what the run before it took, and Prefect says why."""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from flows.embedded.server import API_URL_VARIABLE
from kdgat.canbus.simulation import write_dataset
from kdgat.cluster import format_walltime
from kdgat.run import OutputDirectory
from tests.slurm.cluster_run import ClusterRun, ending
from tests.slurm.slurm import PrivateSlurm
from tests.support.command_line import kdgat

EPOCHS = 80  # longer than the minute that is asked for, with what is added for safety
ASKED = tuple(f"resources.default.{key}" for key in ("walltime=00:01:00", "memory=4G", "adaptive=true"))


@pytest.mark.nightly
def test_a_run_after_one_that_asked_for_too_little_time_and_too_much_memory_asks_for_what_was_measured(
    tmp_path: Path, slurm: PrivateSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(API_URL_VARIABLE, raising=False)  # a server of its own, whose records are looked at
    write_dataset(tmp_path / "data", "synthetic", "small")
    first, second = (ClusterRun(tmp_path / "data", tmp_path / "runs" / name, epochs=EPOCHS) for name in ("one", "two"))
    for run in (first, second):
        run.out.parent.mkdir(exist_ok=True)
        run.overrides = (*run.overrides, *ASKED)
        with ending(run):
            assert run.start().finish() == 0, run.printed()
    before, after = first.attempts[0].resources, second.attempts[0].resources
    assert before is not None
    assert after is not None
    assert (before.walltime_s, before.memory_mib) == (60, 4096)
    peak = max(attempt.peak_memory_mib or 0 for attempt in first.attempts)
    assert after.walltime_s > 60
    assert peak < after.memory_mib < 4096
    assert len(second.attempts) == 1  # nothing cut it

    with contextlib.closing(sqlite3.connect(OutputDirectory(second.out).prefect_database_path)) as database:
        logged = [message for (message,) in database.execute("select message from log")]
    reasons = [message for message in logged if "asks for walltime" in message or "asks for memory" in message]
    walltime = format_walltime(after.walltime_s)  # five minutes on a quiet machine
    assert any(f"asks for walltime {walltime} instead of 00:01:00: 1 run on cpu: " in message for message in reasons)
    assert any("asks for memory 2G instead of 4G: " in message for message in reasons)
    assert any("attempt 1 used" in message for message in logged)

    shown = json.loads(kdgat("runs", "usage", tmp_path / "runs", "--stage", "normal", "--json", status=0).stdout)
    (row,) = shown
    assert (row["runs"], row["attempts"]) == (2, len(first.attempts) + 1)
    assert slurm.jobs() == []
