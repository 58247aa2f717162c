from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from kdgat.can.evaluation.results import Results
from kdgat.run import RunError
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
    with pytest.raises(RunError, match="does not exist"):
        Results.read(path)
    path.write_text('{"dataset": ')
    with pytest.raises(RunError, match="is damaged"):
        Results.read(path)
    path.write_text(json.dumps({**example(), "schema_version": 99}))
    with pytest.raises(RunError, match="schema_version is 99"):
        Results.read(path)
    path.write_text(json.dumps({**example(), "schema_version": 1, "more": {}}))
    assert Results.read(path) == Results(**example())


def test_what_earlier_versions_wrote_of_a_cascade_and_of_evidence_that_adds_up_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results(**example()).write(path)
    content = json.loads(path.read_text())
    for row in content["scenarios"].values():
        row["breakdown"] = {}
    path.write_text(json.dumps(content))
    expected = Results.read(path)
    content["detector"] |= {"cascade": {"model": "distill_gat", "seed": 0}, "accumulation": {"reference": {}}}
    for row in content["scenarios"].values():
        row["num_windows_of_all"] = 3
        row["breakdown"] = {"accumulated": {"num_false_episodes": 1}}
    path.write_text(json.dumps(content))
    assert Results.read(path) == expected
