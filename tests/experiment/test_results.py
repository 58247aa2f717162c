from pathlib import Path

from kdgat.experiment.results import NO_NUMBER, ExperimentResults


def test_what_is_no_number_is_said_and_has_no_part_in_means_and_comparisons(tmp_path: Path) -> None:
    metrics = {"test.error": {"0": 0.5, "1": None}, "test.auc": {"0": None, "1": None}}
    results = ExperimentResults(created="2026-01-01T00:00:00+00:00", seeds=[0, 1], source="/net.py", metrics=metrics)
    results.write(tmp_path / "results.json")
    read = ExperimentResults.read(tmp_path / "results.json")
    assert read == results
    assert [(one.name, one.value, one.is_higher_better) for one in read.measures()] == [("test.error", 0.5, False)]
    (table,) = read.tables()
    assert table.texts[1] == [["test.error", "0.5000", "0.5000", NO_NUMBER], ["test.auc", *[NO_NUMBER] * 3]]
