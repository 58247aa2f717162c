from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import naming
from flows.naming import artifact_key, artifact_scope, evaluation_name, night_name, training_name
from kdgat.can.inputs import can_run
from kdgat.run import OutputDirectory
from kdgat.trees.config import TreesConfig
from tests.can.small_runs import make_config

DATA = {"dataset": "hcrl_sa", "data_root": "data"}
TYPED = make_config("quick", (), data=DATA)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let Prefect say that a flow run has these parameters."""

    def give(planned: datetime | None = None, **parameters: Any) -> None:
        runtime = SimpleNamespace(parameters=parameters, scheduled_start_time=planned)
        monkeypatch.setattr(naming, "runtime_flow_run", runtime)

    return give


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"config": TYPED}, "hcrl_sa quick"),
        ({"config": {"data": DATA}, "preset": "full"}, "hcrl_sa full"),
        ({"config": TYPED, "out": Path("runs/again")}, "hcrl_sa again quick"),
        ({"config": TYPED, "overrides": ("training.max_epochs = 1",)}, "hcrl_sa quick training.max_epochs=1"),
        ({"config": TYPED, "overrides": [f"a.b{one}=1" for one in range(6)]},
         "hcrl_sa quick a.b0=1 a.b1=1 a.b2=1 a.b3=1 and 2 more"),
        ({"config": {"data": DATA}, "overrides": ["a=" + "x" * 90]}, f"hcrl_sa a={'x' * 23}…"),
        ({"config": TreesConfig(), "out": Path("runs/neurons"), "preset": "quick"}, "neurons quick"),
    ],
)  # fmt: skip
def test_a_run_is_named_after_its_data_its_preset_and_its_changes(parameters: Any, name: str, given: Any) -> None:
    given(**{"out": Path("outputs/hcrl_sa"), **parameters})
    assert training_name() == name


def test_a_night_is_named_after_its_date_here(given: Any) -> None:
    planned = datetime(2026, 11, 22, 1, 0, tzinfo=UTC)
    given(planned, config=TYPED)
    here = planned.astimezone().date().isoformat()
    assert night_name() == f"night {here} hcrl_sa"
    given(None, config={"data": DATA}, overrides=["training.max_epochs=2"])
    assert night_name().endswith("hcrl_sa training.max_epochs=2")


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"dataset": "hcrl_sa"}, "evaluation hcrl_sa of the model in service for hcrl_sa"),
        ({"dataset": "set_01", "model_of": "hcrl_sa"}, "evaluation set_01 of the model in service for hcrl_sa"),
        ({"run": Path("runs/sa")}, "evaluation of sa"),
        ({"run": "runs/sa", "dataset": "set_01"}, "evaluation set_01 of sa"),
    ],
)
def test_an_evaluation_is_named_after_data_and_detectors(parameters: Any, name: str, given: Any) -> None:
    given(**parameters)
    assert evaluation_name() == name


def test_keys_of_artifacts_are_of_one_dataset_or_of_one_output() -> None:
    run = can_run(TYPED)
    assert artifact_key("scores", artifact_scope(run, OutputDirectory("runs/a"))) == "scores-hcrl-sa"
    nameless = SimpleNamespace(config=TreesConfig(), family="trees")
    assert artifact_key("report", artifact_scope(nameless, OutputDirectory("runs/mine"))) == "report-trees-mine"  # type: ignore[arg-type]


def test_keys_have_the_letters_that_prefect_takes() -> None:
    assert artifact_key("set_01", "distill_gat-small-seed0", "attempt 2") == "set-01-distill-gat-small-seed0-attempt-2"
    assert artifact_key("Ä/x", "", "y") == "x-y"
