from pathlib import Path

from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState
from kdgat.run.finished import FinishedRun, curves_of_fits


def test_of_a_stage_that_failed_it_is_said_why_and_what_its_checkpoints_are_good_for(tmp_path: Path) -> None:
    failed = StageRecord(name="line-seed0", stage="line", scale="small", seed=0, state=StageState.FAILED)
    failed = failed.model_copy(update={"message": "NUMERIC: train_loss is not finite"})
    output = OutputDirectory(tmp_path)
    output.write_index(RunIndex(family="toy", config={}, stages=[failed]))
    run = FinishedRun(output)
    said = run.describe_failed("line", 0)
    assert "line-seed0 has failed (train_loss is not finite)" in said
    assert "lower training.learning_rate, train from scratch: leave start_from away" in said
    assert run.describe_failed("other") == run.describe_failed(seed=1) == ""


def test_a_training_curve_merges_rows_of_an_epoch() -> None:
    rows = [
        {"epoch": 0, "step": 1, "train_loss": 3.0},
        {"epoch": 0, "step": 2, "train_loss": 2.0},
        {"epoch": 0, "validation_loss": 2.5, "note": "text", "is_best": True},
        {"epoch": 1, "step": 4, "train_loss": float("nan")},
    ]
    assert curves_of_fits(rows) == {
        "": {
            "epoch": [0.0, 1.0],
            "step": [2.0, 4.0],
            "train_loss": [2.0, None],
            "validation_loss": [2.5, None],
            "is_best": [1.0, None],
        }
    }
