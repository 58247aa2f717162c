"""A stage with rows in its `metrics.jsonl`, which tests hand to loggers."""

from pathlib import Path

from kdgat.stage import RunDirectory, StageSpec

HISTORY = [{"epoch": n, "step": 10 * (n + 1), "validation_loss": 1.0 / (n + 1), "is_best": True} for n in range(3)]


def make_directory(path: Path, num_rows: int = 0, fit: str = "") -> RunDirectory:
    """Make the run directory of a stage whose fit has so many rows."""
    config = {"training": {"max_epochs": 2, "gradient_clip": None}}
    directory = RunDirectory(path).create(StageSpec(family="toy", stage="line", seed=7, config=config))
    named = [{"fit": fit, **row} if fit else row for row in HISTORY[:num_rows]]
    others = [row for row in directory.read_metrics() if row.get("fit", "") != fit]
    directory.replace_metrics([*others, *named])
    return directory
