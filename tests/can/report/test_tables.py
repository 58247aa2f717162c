"""The tables of the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kdgat.can.evaluation.metrics import binary_metrics
from kdgat.can.evaluation.results import Results, WindowMetrics
from kdgat.can.report.tables import comparison_tables, confusion_table


@pytest.mark.parametrize(("detector_f1", "is_best"), [(1.0, True), (0.0, False)])
def test_bold_is_the_largest_f1_of_its_column_and_the_default_detector_takes_part(
    example_output: Path, detector_f1: float, *, is_best: bool
) -> None:
    found = Results.read(example_output / "results.json").model_dump(mode="json")
    for row in found["scenarios"].values():
        row["f1"] = None if row["f1"] is None else detector_f1
    found["f1"] = {name: row["f1"] for name, row in found["scenarios"].items()}
    tables = comparison_tables(Results.model_validate(found))
    assert tables
    for table in tables:
        for place in range(2, len(table.header)):
            cells = [row[place] for row in table.rows]
            largest = max(cell.text.split(" ± ")[0] for cell in cells)
            assert {cell.text.split(" ± ")[0] for cell in cells if cell.is_best} == {largest}
            assert cells[0].is_best is is_best


def test_confusion_matrix_has_counts_and_shares_of_the_true_class() -> None:
    score, label = np.array([0.9, 0.2, 0.8, 0.1]), np.array([1, 1, 0, 0])
    windows = {"test": label, "clean": np.zeros(4, int)}
    rows = confusion_table({
        name: WindowMetrics(**binary_metrics(score, label, 0.5)) for name, label in windows.items()
    }).rows  # fmt: skip
    assert [(cell.text, cell.note) for cell in rows[0][1:]] == [("1", "50 %")] * 4
    assert [(cell.text, cell.note) for cell in rows[1][1:]] == [("0", "-")] * 2 + [("2", "50 %")] * 2
