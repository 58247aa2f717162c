import math
from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.family import FAMILY
from kdgat.experiment.night import changes, chosen_metric, decide, digests, mean_scores


@pytest.mark.parametrize(
    ("metric", "new", "current", "tolerance", "is_accepted"),
    [
        ("test.error", 0.2, 0.3, 0.0, True),
        ("test.error", 0.3, 0.2, 0.0, False),
        ("test.error", 0.3, 0.2, 0.15, True),
        ("test.accuracy", 0.3, 0.2, 0.0, True),
        ("test.accuracy", 0.2, 0.3, 0.05, False),
        ("test.error", 0.2, 0.2, 0.0, True),
        ("test.error", math.nan, 0.3, 1.0, False),
        ("test.error", math.inf, math.inf, 1.0, False),
        ("test.error", 0.2, math.nan, 1.0, False),
        ("test.error", math.nan, None, 1.0, False),
        ("test.error", 0.2, None, 0.0, True),
    ],
)
def test_a_model_goes_into_service_unless_it_is_worse_by_more_than_the_tolerance_or_no_number(
    metric: str, new: float, current: float | None, tolerance: float, is_accepted: bool
) -> None:
    decision = decide(metric, {metric: new}, None if current is None else {metric: current}, tolerance)
    assert decision.accepted is is_accepted, decision.describe()


def test_a_model_that_does_not_measure_the_metric_holds_its_place() -> None:
    assert not decide("test.error", {"test.error": 0.1}, {"test.other": 0.1}).accepted


def test_of_several_metrics_one_is_named() -> None:
    assert chosen_metric("", {"test.error": 0.1}) == "test.error"
    assert chosen_metric("test.b", {"test.a": 0.1, "test.b": 0.1}) == "test.b"
    with pytest.raises(UserError, match=r"name one of test\.a, test\.b"):
        chosen_metric("", {"test.a": 0.1, "test.b": 0.1})
    with pytest.raises(UserError, match=r"did you mean 'test\.error'"):
        chosen_metric("test.eror", {"test.error": 0.1})


def test_scores_are_means_over_seeds_of_what_all_have_measured() -> None:
    assert mean_scores([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": 2.0}


def test_what_has_changed_is_named_and_what_changes_no_result_is_no_change(source: Path) -> None:
    def digests_with(*overrides: str) -> dict[str, str]:
        return digests(FAMILY.plan(ExperimentConfig.from_preset("quick", {"source": str(source)}, overrides)))

    before = digests_with()
    assert changes(before, digests_with("training.loggers=[tensorboard]", "resources.default.cores=2")) == ""
    assert changes(before, digests_with("model.hidden=4")) == "configuration"
    assert changes(before, digests_with("seeds=[0, 1]")) == "configuration"
    source.write_text(source.read_text().replace("mse_loss", "l1_loss"))
    assert changes(before, digests_with()) == "code"
