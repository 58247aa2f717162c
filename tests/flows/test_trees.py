"""The flow `trees` as a person runs it, on drawn trees: a process for each stage."""

import sqlite3
from pathlib import Path

import pytest

from kdgat.run import OutputDirectory, StageState
from kdgat.trees.evaluation.results import TreesResults
from tests.support.command_line import kdgat, run_kdgat
from tests.support.small_runs import as_options
from tests.support.waiting import TIMEOUT_S
from tests.trees.small_runs import OVERRIDES

pytestmark = pytest.mark.prefect  # `kdgat train` starts a server where none is configured

# Fine-tuning and its comparisons start processes of the same kind: tests/trees runs them in one.
STAGES = ("prepare", "pretrain-seed0", "evaluation-seed0")


def test_one_command_prepares_pretrains_evaluates_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ["train", "trees", "--out", str(out), "--seeds", "0", *as_options(*OVERRIDES, "label_fractions=[]")]
    done = run_kdgat(*command, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    records = OutputDirectory(out).read_index().stages
    assert [(record.name, record.state) for record in records] == [(name, StageState.FINISHED) for name in STAGES]

    results = TreesResults.read(out / "results.json")
    assert {row.method for row in results.growth} >= {"pretrained", "mean by depth", "optimum"}
    for sentence in results.conclusions:
        assert sentence in done.stdout
    assert "Self-supervised learning on geometric trees" in (out / "report.html").read_text(encoding="utf-8")

    database = sqlite3.connect(out / "prefect" / "prefect.db")
    assert {row[0] for row in database.execute("select state_type from flow_run")} == {"COMPLETED"}
    assert {row[0] for row in database.execute("select name from flow")} == {"trees"}
    assert set(STAGES) <= {row[0] for row in database.execute("select name from task_run")}
    artifacts = {row[0] for row in database.execute("select key from artifact")}
    assert {f"{key}-trees-{out.name}" for key in ("growth", "order", "report")} <= artifacts
    database.close()

    planned = kdgat("plan", "trees", "--out", out, "--seeds", "0", *as_options(*OVERRIDES, "label_fractions=[]"))
    assert planned.status == 0
    assert planned.stdout.count("finished") >= len(STAGES)
