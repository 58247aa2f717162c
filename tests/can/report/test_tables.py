"""The tables of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdgat.can.evaluation.results import Results
from kdgat.can.report.tables import comparison_tables


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
