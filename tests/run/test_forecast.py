"""What a run still takes is said as far as it was measured: by its own stages, and by attempts at such stages."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from kdgat.cluster.ending import EndKind
from kdgat.cluster.usage import Usage, append_usage, config_digest
from kdgat.run import OutputDirectory, PlannedStage, StageRecord, StageState
from kdgat.run.directory import RunIndex
from kdgat.run.forecast import forecast
from kdgat.run.kept_plan import KeptPlan

MEASURED = {"phase": "train", "left_low_s": 100.0, "left_high_s": 200.0}
CONFIG = {"training": {"max_epochs": 3}}


class Example:
    """A run of a stage that trains, of one beside it where that is said, and of one that needs the first."""

    def __init__(self, path: Path, *states: StageState) -> None:
        self.output = OutputDirectory(path / "runs" / "first")
        names = [f"stage{place}" for place in range(len(states))]
        records = [
            StageRecord(name=name, stage=name, scale="large", seed=0, state=state, directory=f"stages/{name}")
            for name, state in zip(names, states, strict=True)
        ]
        for one in records:
            self.output.stage_directory(one).path.mkdir(parents=True)
        records[-1].depends_on = ["stage0"]
        self.index = RunIndex(family="toy", config={}, stages=records)
        stages = [PlannedStage(name, name, "large", 0, CONFIG) for name in names]
        KeptPlan(family="toy", config={}, stages=stages).write(self.output)

    def progress(self, place: int, progress: dict[str, Any]) -> None:
        self.output.stage_directory(self.index.stages[place]).write_progress(progress)

    def history(self, stage: str, **changes: Any) -> None:
        own = {"run": "other", "device": "cpu", "units": "stages", "done": 1, "unit_s": 30.0, "wall_s": 40.0}
        usage = Usage(
            time=1.0,
            family="toy",
            stage=stage,
            config=config_digest(CONFIG),
            **{"end": EndKind.FINISHED, **own, **changes},
        )
        append_usage(self.output.path.parent / "history" / "other.jsonl", usage)

    def describe(self) -> str:
        return forecast(self.output, self.index).describe()


def test_a_run_whose_stages_to_come_are_unknown_lasts_at_least_as_long_as_the_one_that_runs(tmp_path: Path) -> None:
    example = Example(tmp_path, StageState.RUNNING, StageState.PLANNED)
    assert example.describe() == "2 stages left"
    example.progress(0, MEASURED)
    assert example.describe() == "at least 1 min 40 s left, 1 stage unknown"


def test_stages_to_come_count_as_attempts_took_and_stages_that_run_side_by_side_count_once(tmp_path: Path) -> None:
    example = Example(tmp_path, StageState.RUNNING, StageState.RUNNING, StageState.PLANNED)
    example.progress(0, MEASURED)
    example.progress(1, {**MEASURED, "left_low_s": 1000.0, "left_high_s": 1000.0})
    example.history("stage2")
    assert example.describe() == "17 min left"
    example.progress(1, MEASURED)
    found = forecast(example.output, example.index).remaining
    assert found is not None
    assert found.low == 140.0
    assert found.high > 200.0 + 40.0


def test_early_stopping_of_a_stage_makes_the_end_of_its_run_an_upper_bound(tmp_path: Path) -> None:
    example = Example(tmp_path, StageState.RUNNING)
    example.progress(0, {**MEASURED, "may_end_early": True})
    assert example.describe() == "at most 3 min left"


def test_jobs_that_have_to_wait_in_the_queue_make_it_a_lower_bound(tmp_path: Path) -> None:
    example = Example(tmp_path, StageState.RUNNING, StageState.PLANNED)
    example.progress(0, MEASURED)
    example.history("stage1")
    example.output.slurm_path.mkdir()
    assert example.describe() == "at least 2 min left"


def test_what_was_stopped_or_given_up_counts_as_left_of_a_run_that_ends(tmp_path: Path) -> None:
    assert (
        Example(tmp_path / "a", StageState.PAUSED, StageState.PLANNED, StageState.PLANNED).describe() == "3 stages left"
    )
    example = Example(tmp_path / "b", StageState.FINISHED, StageState.RUNNING, StageState.BLOCKED, StageState.BLOCKED)
    assert example.describe() == "3 stages left"


@pytest.mark.parametrize("state", [StageState.FINISHED, StageState.FAILED, StageState.PAUSED, StageState.BLOCKED])
def test_nothing_is_said_of_what_is_over(tmp_path: Path, state: StageState) -> None:
    assert Example(tmp_path, state).describe() == ""


def test_progress_of_a_process_that_is_gone_says_nothing(tmp_path: Path) -> None:
    example = Example(tmp_path, StageState.RUNNING)
    example.progress(0, MEASURED)
    old = time.time() - 3600
    os.utime(example.output.stage_directory(example.index.stages[0]).progress_path, (old, old))
    assert example.describe() == "1 stage left"


def test_a_plan_that_cannot_be_read_leaves_the_rest(tmp_path: Path) -> None:
    example = Example(tmp_path, StageState.RUNNING, StageState.PLANNED)
    example.output.plan_path.write_text("{")
    example.progress(0, MEASURED)
    assert "1 stage unknown" in example.describe()
