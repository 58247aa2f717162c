from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from kdgat.can.results import (
    SCHEMA_PATH,
    Results,
    ResultsError,
    format_value,
    read_results,
    results_schema,
    results_table,
    training_curve,
    write_results,
)
from tests.can.example_results import example


def test_results_survive_writing_and_reading(tmp_path: Path) -> None:
    results = Results.model_validate(example())
    write_results(tmp_path / "results.json", results)
    assert read_results(tmp_path / "results.json") == results
    assert max(len(line) for line in (tmp_path / "results.json").read_text().splitlines()) > 1000, "curves on one line"


def test_f1_stands_directly_under_the_scenario_and_at_the_top(tmp_path: Path) -> None:
    write_results(tmp_path / "results.json", Results.model_validate(example()))
    plain = json.loads((tmp_path / "results.json").read_text())
    assert set(plain["f1"]) == {"test_01", "test_02"}
    for name, f1 in plain["f1"].items():
        assert 0.9 < f1 <= 1
        assert plain["scenarios"][name]["f1"] == f1
        assert plain["scenarios"][name]["recordings"]["clean"]["f1"] is None


def test_disagreeing_f1_is_refused() -> None:
    with pytest.raises(ValidationError, match="disagree"):
        Results.model_validate({**example(), "f1": {"test_01": 1.0, "test_02": 1.0}})


def test_nan_never_reaches_the_file(tmp_path: Path) -> None:
    results = Results.model_validate(example())
    broken = results.scenarios["test_01"].model_copy(update={"auc": float("nan")})
    with pytest.raises(ValidationError, match="finite"):
        write_results(tmp_path / "results.json", results.model_copy(update={"scenarios": {"test_01": broken}}))
    assert not (tmp_path / "results.json").exists()


def test_missing_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(ResultsError, match="does not exist"):
        read_results(path)
    path.write_text('{"dataset": ')
    with pytest.raises(ResultsError, match="not JSON"):
        read_results(path)
    path.write_text(json.dumps({**example(), "schema_version": 99}))
    with pytest.raises(ResultsError, match="schema_version 99"):
        read_results(path)
    path.write_text(json.dumps({**example(), "scenariso": {}}))
    with pytest.raises(ResultsError, match="did you mean 'scenarios'"):
        read_results(path)


def test_schema_file_in_the_package_is_current() -> None:
    assert json.loads(SCHEMA_PATH.read_text()) == results_schema(), "run: python -m kdgat.can.results"


def test_training_curve_merges_rows_of_an_epoch() -> None:
    rows = [
        {"epoch": 0, "step": 1, "train_loss": 3.0},
        {"epoch": 0, "step": 2, "train_loss": 2.0},
        {"epoch": 0, "validation_loss": 2.5, "note": "text", "is_best": True},
        {"epoch": 1, "step": 4, "train_loss": float("nan")},
    ]
    assert training_curve(rows) == {
        "epoch": [0.0, 1.0],
        "step": [2.0, 4.0],
        "train_loss": [2.0, None],
        "validation_loss": [2.5, None],
        "is_best": [1.0, None],
    }


def test_table_has_a_row_per_scenario_with_spread() -> None:
    header, rows = results_table(Results.model_validate(example()))
    assert [row[0] for row in rows] == ["test_01", "test_02"]
    assert all(len(row) == len(header) for row in rows)
    assert "3 seeds" in rows[0][-1]


def test_values_never_round_to_perfect() -> None:
    assert format_value(1.0) == "1.0000"
    assert format_value(0.999999999) == ">0.9999"
    assert format_value(0.00001) == "<0.0001"
    assert format_value(0.0) == "0.0000"
    assert format_value(None) == "-"
