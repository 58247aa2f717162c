from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from kdgat.can.evaluation.results import (
    DEFAULT_DETECTOR,
    SCHEMA_PATH,
    Results,
    format_value,
    models_table,
    scores_table,
)
from kdgat.run.results import ResultsError
from tests.can.example_results import example


def test_results_survive_writing_and_reading(tmp_path: Path) -> None:
    results = Results.model_validate(example())
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    assert max(len(line) for line in (tmp_path / "results.json").read_text().splitlines()) > 1000, "curves on one line"


def test_f1_stands_directly_under_the_scenario_and_at_the_top(tmp_path: Path) -> None:
    Results.model_validate(example()).write(tmp_path / "results.json")
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
        results.model_copy(update={"scenarios": {"test_01": broken}}).write(tmp_path / "results.json")
    assert not (tmp_path / "results.json").exists()


def test_missing_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(ResultsError, match="does not exist"):
        Results.read(path)
    path.write_text('{"dataset": ')
    with pytest.raises(ResultsError, match="not JSON"):
        Results.read(path)
    path.write_text(json.dumps({**example(), "schema_version": 99}))
    with pytest.raises(ResultsError, match="schema_version 99"):
        Results.read(path)
    path.write_text(json.dumps({**example(), "schema_version": 1, "scenariso": {}}))
    with pytest.raises(ResultsError, match="did you mean 'scenarios'"):
        Results.read(path)


def test_schema_file_in_the_package_is_current() -> None:
    assert json.loads(SCHEMA_PATH.read_text()) == Results.schema_of_file(), (
        "run: python -m kdgat.can.evaluation.results"
    )


def test_table_has_a_row_per_scenario_with_spread() -> None:
    header, rows = scores_table(Results.model_validate(example())).texts
    assert [row[0] for row in rows] == ["test_01", "test_02"]
    assert all(len(row) == len(header) for row in rows)
    assert "3 seeds" in rows[0][-1]


def test_values_never_round_to_perfect() -> None:
    assert format_value(1.0) == "1.0000"
    assert format_value(0.999999999) == ">0.9999"
    assert format_value(0.00001) == "<0.0001"
    assert format_value(0.0) == "0.0000"
    assert format_value(None) == "-"


def with_two_seeds(f1: float, other_f1: float | None) -> Results:
    content = example()
    first = content["models"]["normal"]["0"]
    second = copy.deepcopy(first)
    first["test_01"]["f1"], second["test_01"]["f1"] = f1, other_f1
    content["models"]["normal"]["1"] = second
    return Results.model_validate(content)


def test_a_model_shows_its_mean_over_seeds() -> None:
    header, rows = models_table(with_two_seeds(0.5, 0.75)).texts
    assert header == ["model", "test_01", "test_02"]
    assert rows[0][:2] == ["normal", "0.6250"]


def test_a_seed_without_f1_is_left_out_of_the_mean() -> None:
    _, rows = models_table(with_two_seeds(0.5, None)).texts
    assert rows[0][1] == "0.5000"


def test_the_default_detector_stands_below_the_models() -> None:
    results = Results.model_validate(example())
    _, rows = models_table(results).texts
    assert rows[-1][0] == DEFAULT_DETECTOR
    assert len(rows) == len(results.models) + 1
