from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdgat.can.evaluation.metrics import binary_metrics, roc_curve, spread
from kdgat.can.evaluation.results import Curves, DetectorScenario, Spread, WindowMetrics
from kdgat.can.report import figures
from kdgat.can.report.names import described, model_name, model_order
from kdgat.canbus.summary import InjectionSummary
from kdgat.report.style import nines, nines_axis, wrapped

SCORE, LABEL = np.array([0.1, 0.4, 0.6, 0.9]), np.array([0, 1, 0, 1])
METRICS = WindowMetrics(**binary_metrics(SCORE, LABEL, 0.5))
CLEAN = WindowMetrics(**binary_metrics(SCORE, np.zeros(4, int), 0.5))


def traces(picture: Any) -> dict[str, dict[str, Any]]:
    return {trace.get("legendgroup", ""): trace for trace in picture.figure.to_plotly_json()["data"]}


def test_roc_marks_the_chosen_threshold_and_orders_models() -> None:
    curves = Curves(roc=roc_curve(SCORE, LABEL))
    picture = figures.roc("test", {"normal": curves, "autoencoder": curves, "detector": curves}, METRICS)
    assert picture is not None
    assert [key.label for key in picture.keys] == ["default detector", "autoencoder", "normal", "chosen threshold"]
    found = traces(picture)
    assert found["chosen threshold"]["x"] == [0.5]
    assert found["chosen threshold"]["y"] == [pytest.approx(nines(0.5))]
    assert min(found["normal"]["x"]) == pytest.approx(1e-4), "a rate of zero must stay on the logarithmic axis"
    assert "Detection rate by false-positive rate" in picture.alternative


def test_kinds_of_a_fusion_are_hidden_until_asked_for() -> None:
    curves = Curves(roc=roc_curve(SCORE, LABEL))
    picture = figures.roc("test", {name: curves for name in ("fusion", "fusion_dqn", "fusion_small")}, METRICS)
    assert picture is not None
    assert {key.label: key.is_hidden for key in picture.keys if key.is_hidden} == {"fusion_dqn": True}


def test_curves_of_a_clean_scenario_are_left_out() -> None:
    assert figures.roc("clean", {"detector": Curves()}, CLEAN) is None
    assert figures.precision_recall("clean", {"detector": Curves()}, CLEAN) is None


def test_bars_leave_out_scenarios_without_attacks_and_say_so() -> None:
    over_seeds = {"f1": Spread(**spread([0.9, 0.99]))}
    scenarios = {
        "test": DetectorScenario(**METRICS.model_dump(), over_seeds=over_seeds),
        "clean": DetectorScenario(**CLEAN.model_dump()),
    }
    picture = figures.scenario_bars(scenarios)
    assert "no attack: clean" in picture.caption
    found = traces(picture)
    assert found["default detector"]["y"] == ["test"]
    bars = found["single seeds, mean and range"]
    assert bars["x"][0] - bars["error_x"]["arrayminus"][0] == pytest.approx(nines(0.9))
    assert bars["x"][0] + bars["error_x"]["array"][0] == pytest.approx(nines(0.99))


def test_injected_attacks_are_sorted_by_size() -> None:
    attacks = {"replay": {"num_windows": 5}, "denial_of_service": {"num_windows": 9}}
    picture = figures.injected_attacks(InjectionSummary(enabled=True, attacks=attacks, num_virtual_vehicles=3))
    assert picture is not None
    assert traces(picture)[""]["y"] == ["replay", "denial of service"]
    assert figures.injected_attacks(InjectionSummary(enabled=True)) is None


def test_spread_of_models_counts_the_seeds_that_have_the_scenario() -> None:
    perfect = WindowMetrics(**binary_metrics(SCORE, LABEL, 0.3)).model_dump()
    models = {"normal": {"0": {"a": METRICS, "b": METRICS}, "1": {"a": WindowMetrics(**perfect)}}}
    spreads = figures.spreads_of_models(models, "a")
    assert spreads["normal"].count == 2
    assert spreads["normal"].mean == pytest.approx((0.5 + 0.8) / 2)
    assert figures.spreads_of_models(models, "b")["normal"].std is None
    assert figures.spreads_of_models(models, "absent") == {}


def test_unknown_models_are_shown_last_under_their_own_name() -> None:
    assert sorted(["transformer", "fusion_mlp", "normal", "detector"], key=model_order) == [
        "detector",
        "normal",
        "fusion_mlp",
        "transformer",
    ]


def test_a_model_has_one_name_in_commands_results_and_the_report() -> None:
    for name in ("normal", "fusion_small_weighted_average", "my_model"):
        assert model_name(name) == name
    assert model_name("detector") == "default detector"
    assert (
        described(["normal", "habits"])
        == "normal: graph attention network (GAT); habits: habits of identifiers alone; not trained"
    )


@pytest.mark.parametrize(
    ("largest", "labels"),
    [
        (0.4, ["0", "0.5", "0.9"]),
        (0.95, ["0", "0.5", "0.9", "0.99"]),
        (1.0, ["0", "0.9", "0.99", "0.999", "1"]),
        (0.9995, ["0", "0.9", "0.99", "0.999", "1"]),
    ],
)
def test_axis_of_nines_ends_where_the_values_end(largest: float, labels: list[str]) -> None:
    axis = nines_axis("F1", largest)
    assert axis["ticktext"] == labels
    assert axis["range"][0] < 0
    assert axis["range"][1] > nines(largest)


def test_long_names_break_after_underscores() -> None:
    assert wrapped("test_02_unknown_vehicle_known_attack", 22) == "test_02_unknown_<br>vehicle_known_attack"
    assert wrapped("short") == "short"


def test_a_curriculum_is_drawn_as_a_ratio_and_percentages() -> None:
    columns = {
        "epoch": [0.0, 1.0],
        "curriculum_ratio": [1.0, 4.0],
        "curriculum_percentile": [50.0, 90.0],
        "curriculum_hard_fraction": [0.0, 0.5],
    }
    picture = figures.curriculum("GAT, curriculum", {0: columns, 1: columns})
    assert picture is not None
    drawn = [(trace["yaxis"], trace["y"]) for trace in picture.figure.to_plotly_json()["data"]]
    assert drawn == [("y", [1.0, 4.0]), ("y2", [50.0, 90.0]), ("y2", [0.0, 50.0])]
    assert "from 1 to 4 benign windows" in picture.caption
    assert figures.curriculum("GAT", {0: {"epoch": [0.0], "train_loss": [1.0]}}) is None
