"""Tables of results: what stands in which row, and values that never look better than they are."""

from __future__ import annotations

import copy

import pytest

from kdgat.can.evaluation.results import DEFAULT_DETECTOR, Results
from kdgat.can.evaluation.tables import format_share, format_value, models_table, scores_table, vehicles_table
from kdgat.can.family import FAMILY
from tests.can.example_results import example


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


def test_vehicles_stand_by_the_median_the_worst_and_all_of_them() -> None:
    content = example()
    breakdown = content["scenarios"]["test_01"]["breakdown"] = {}
    counts = {"bmw": (1000, 0, 0), "kia": (100, 30, 2), "leaf": (100, 1, 1)}
    breakdown["vehicles"] = {
        name: {"num_windows": windows, "num_false_alarms": alarms, "num_false_episodes": episodes, "hours": 0.1}
        for name, (windows, alarms, episodes) in counts.items()
    }
    table = vehicles_table(Results.model_validate(content))
    assert table is not None
    assert table.texts[1] == [
        ["test_01", "3", "1", "1,200", "1.000%", "30.000% (kia)", "2.583%", "10"]
    ]  # fmt: skip
    assert vehicles_table(Results.model_validate(example())) is None


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


def test_a_run_without_tests_ends_with_one_sentence_and_no_empty_table() -> None:
    content = copy.deepcopy(example())
    content |= {"scenarios": {}, "f1": {}, "models": {}}
    results = Results.model_validate(content)
    assert all(table.rows for table in FAMILY.tables(results))
    assert FAMILY.conclusions(results) == ["No test scenario was scored: there are no recordings to test on."]


def test_what_a_run_decides_by_has_one_name() -> None:
    results = Results.model_validate(example())
    assert scores_table(results).caption.startswith(f"default detector ({results.detector.name}): ")
    assert models_table(results).rows[-1][0].text == "default detector"
    assert FAMILY.conclusions(results)[0].startswith("default detector: ")


def test_the_first_result_is_one_table_and_all_others_are_asked_for() -> None:
    content = example()
    content["scenarios"]["test_01"]["breakdown"] = {
        "episodes": {"num_episodes": 8, "num_found": 7, "median_delay_s": 0.0412, "worst_delay_s": 2.0},
        "benign_hours": 0.0125,
        "num_false_episodes": 2,
        "f1_interval": {"low": 0.982, "high": 0.9999},
    }
    results = Results.model_validate(content)
    first, *others = FAMILY.tables(results)
    assert not first.is_detail
    assert all(table.is_detail for table in others)
    header, rows = first.texts
    assert header[:4] == ["scenario", "attacks found", "median delay", "F1 (95 %)"]
    assert header[4:] == ["false alarms", "benign time", "benign windows in alarm"]
    assert rows[0][:3] == ["test_01", "7 of 8", "0.0412 s"]
    assert rows[0][3].endswith(" (0.982 to >0.999)")
    assert rows[0][4:6] == ["2", "45 s"]
    assert rows[0][6].endswith(" %")
    sentence = FAMILY.conclusions(results)[0]
    assert "7 of 8 attacks found; F1 " in sentence
    assert "; 2 false alarms in 45 s without attack; at most " in sentence


@pytest.mark.parametrize(
    ("default", "has_habits", "said"),
    [
        (0.9, True, "0.9000, that of the best network alone (curriculum) 0.8000: no network of this run does better"),
        (0.7, True, "the habits of identifiers cost more than they find; -O evaluation.rule=fixed leaves them out"),
        (0.7, False, "too, decide by it with -O evaluation.detector=curriculum"),
    ],
)
def test_the_default_detector_stands_beside_the_best_network_alone_with_what_to_do(
    default: float, has_habits: bool, said: str
) -> None:
    content = example()
    scenario, network = content["scenarios"]["test_01"], content["models"]["normal"]["0"]["test_01"]
    content |= {
        "scenarios": {"test_01": {**scenario, "f1": default}},
        "f1": {"test_01": default},
        "models": {"curriculum": {"0": {"test_01": {**network, "f1": 0.8}}}},
        "parameter_counts": {"curriculum": 9},
    }
    content["detector"] |= {"name": "curriculum"}
    content["detector"]["decision"]["habits"] = has_habits
    assert FAMILY.conclusions(Results.model_validate(content))[1].endswith(said)


def test_a_result_of_few_windows_says_how_few_and_what_is_needed() -> None:
    content = example()
    said = "Too few test windows to judge by: test_01 300; an interval needs 640: test on longer recordings, or on more"
    content["scenarios"]["test_02"]["num_windows"] = 640
    assert FAMILY.conclusions(Results.model_validate(content))[-1] == said
    content["scenarios"]["test_01"]["num_windows"] = 640
    assert "Too few" not in FAMILY.conclusions(Results.model_validate(content))[-1]


def test_shares_are_in_percent_and_never_look_better_than_they_are() -> None:
    assert [format_share(one) for one in (1.0, 0.99999, 0.956, 0.00102, 0.00001, 0.0, None)] == [
        "100 %", ">99.9 %", "95.6 %", "0.102 %", "<0.01 %", "0 %", "-",
    ]  # fmt: skip
