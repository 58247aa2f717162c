from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kdgat.lap.evaluation.results import (
    Evaluation,
    Kind,
    LapResults,
    Machine,
    Measurement,
    format_share,
    headlines,
    summarise,
)
from kdgat.lap.evaluation.tables import results_table
from kdgat.run import RunError

FINAL = "trained mid_2048"
KINDS = {"scipy": Kind.COMPETITOR, "row minima": Kind.UNTRAINED, "Sinkhorn": Kind.UNTRAINED, "oracle": Kind.ORACLE}


def measured(instance: int, times: dict[str, float], **values: Any) -> list[Measurement]:
    """Measurements of some methods on one instance; each time is given three times over, with one outlier."""
    return [
        Measurement(
            family="uniform",
            size=2048,
            instance=instance,
            method=method,
            kind=KINDS.get(method, Kind.TRAINED),
            solver=None if method == "scipy" else "core",
            milliseconds=[milliseconds, 50 * milliseconds, milliseconds],
            **values,
        )
        for method, milliseconds in times.items()
    ]


def evaluated(rows: list[Measurement], seed: int = 0) -> Evaluation:
    machine = Machine(processor="test", num_cores=2, num_threads=1)
    checked = {"2048": {"uniform": 7}}
    return Evaluation(seed=seed, final_method=FINAL, num_checked=checked, machine=machine, measurements=rows)


def times(scipy: float, rows: float, sinkhorn: float, trained: float, oracle: float = 10.0) -> dict[str, float]:
    return {"scipy": scipy, "row minima": rows, "Sinkhorn": sinkhorn, FINAL: trained, "oracle": oracle}


def summary(*instances: dict[str, float]) -> LapResults:
    rows = [row for place, one in enumerate(instances) for row in measured(place, one)]
    return summarise([evaluated(rows)], created="now")


def test_the_trained_model_is_compared_with_the_fastest_untrained_method() -> None:
    verdict = summary(times(600, 60, 700, 40)).groups[0].verdict
    assert verdict is not None
    assert (verdict.trained, verdict.untrained) == (FINAL, "row minima")
    assert verdict.ratio == pytest.approx(1.5)
    assert verdict.times_scipy == pytest.approx(15.0)
    assert verdict.headroom == pytest.approx(6.0)
    assert "1.50 times as fast as the best untrained seed (row minima), 15.0 times as fast as scipy" in verdict.sentence
    assert summary(times(600, 60, 50, 40)).groups[0].verdict.untrained == "Sinkhorn"  # type: ignore[union-attr]


def test_ratios_are_taken_within_an_instance_and_outliers_among_repeats_do_not_count() -> None:
    # One instance is ten times as large a task for everybody.
    results = summary(times(100, 20, 90, 10), times(1000, 200, 900, 100), times(120, 20, 90, 40))
    verdict = results.groups[0].verdict
    assert verdict is not None
    assert verdict.ratio == pytest.approx(2.0)
    assert verdict.ratio_range == pytest.approx((0.5, 2.0))


def test_falling_short_is_said_in_words() -> None:
    results = summary(times(300, 30, 700, 50, oracle=27))
    assert results.conclusions["uniform"] == (
        "uniform: at n = 2,048 the trained model falls short of the best untrained seed (row minima): 0.60 times as "
        "fast, 6.00 times as fast as scipy; optimal duals for nothing would be 1.11 times as fast."
    )
    assert "is as fast as the best untrained seed" in summary(times(300, 30, 700, 30.5)).conclusions["uniform"]


def test_all_families_and_sizes_together_are_three_sentences_with_what_to_do_about_a_loss() -> None:
    rows = measured(0, times(300, 30, 700, 50, oracle=27))
    rows += [row.model_copy(update={"family": name, "size": 512}) for name in ("a", "b", "c") for row in rows]
    said = headlines(summarise([evaluated(rows)], created="now"))
    assert said[0] == (
        "the trained model is faster than the best untrained seed in 0 and slower in 4 of 4 groups (family and size): "
        "0.60 times as fast, and 6.00 times as fast as scipy."
    )
    assert "would be 1.11 times as fast" in said[1]
    assert "without --model" in said[2]
    assert len(said) == 3
    assert len(headlines(summary(times(600, 60, 700, 40)))) == 2


def test_seeds_of_training_are_summarised_and_kept_apart() -> None:
    parts = [
        evaluated(measured(0, times(600, 60, 700, milliseconds)), seed) for seed, milliseconds in ((3, 30), (4, 60))
    ]
    results = summarise(parts, created="now")
    assert results.seeds == [3, 4]
    verdict = results.groups[0].verdict
    assert verdict is not None
    assert verdict.ratio_of_seeds == pytest.approx({"3": 2.0, "4": 1.0})
    assert verdict.ratio == pytest.approx(1.5)
    assert results.groups[0].num_checked == 14


def test_counters_and_gaps_are_means_and_what_is_unknown_stays_unknown() -> None:
    rows = measured(0, {"row minima": 20.0}, augmentations=10, gap_share=0.5, greedy_share=0.9)
    rows += measured(1, {"row minima": 20.0}, augmentations=20, gap_share=0.7, greedy_share=0.7)
    [method] = summarise([evaluated(rows)], created="now").groups[0].methods
    assert method.augmentations == 15
    assert method.gap_share == pytest.approx(0.6)
    assert method.greedy_share == pytest.approx(0.8)
    assert method.u_r2 is None
    assert method.times_scipy is None


def test_each_side_gets_its_faster_way_to_search() -> None:
    rows = measured(0, times(600, 60, 700, 40))
    rows += [row.model_copy(update={"solver": "dense", "milliseconds": [20.0]}) for row in rows if row.method == FINAL]
    group = summarise([evaluated(rows)], created="now").groups[0]
    assert group.verdict is not None
    assert group.verdict.ratio == pytest.approx(3.0)


def test_the_table_has_a_row_per_family_and_size_and_counters_before_times() -> None:
    header, rows = results_table(summary(times(600, 60, 700, 40))).texts
    assert len(rows) == 1
    assert rows[0][:3] == ["uniform", "2,048", "7"]
    assert dict(zip(header, rows[0], strict=True))["gain"] == "1.50"
    assert header.index("augmentations") < header.index("scipy ms")


def test_without_a_trained_model_there_is_no_verdict_and_the_table_says_so() -> None:
    results = summarise([evaluated(measured(0, {"scipy": 10.0, "row minima": 5.0}))], created="now")
    assert results.groups[0].verdict is None
    sentence = "uniform: at n = 2,048 the best untrained seed (row minima) is 2.00 times as fast as scipy."
    assert results.conclusions == {"uniform": sentence}
    header, (row,) = results_table(results).texts
    assert dict(zip(header, row, strict=True))["gain"] == "-"
    results = summarise([evaluated(measured(0, {"scipy": 10.0}))], created="now")
    assert results.conclusions == {"uniform": "uniform: nothing to compare."}


def test_files_come_back_as_they_were_written(tmp_path: Path) -> None:
    evaluation = evaluated(measured(0, times(600, 60, 700, 40), u_r2=0.5))
    evaluation.write(tmp_path / "evaluation.json")
    assert Evaluation.read(tmp_path / "evaluation.json") == evaluation
    results = summarise([evaluation], created="now")
    results.write(tmp_path / "results.json")
    assert LapResults.read(tmp_path / "results.json") == results


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "is damaged"),
        ("[]", "is not what this kdgat writes"),
        ('{"schema_version": 2}', "written by a newer kdgat"),
        ('{"schema_version": 1, "grops": []}', "groups: required"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(RunError, match=f"(?s)results.json.*{complaint}"):
        LapResults.read(path)
    with pytest.raises(RunError, match="does not exist"):
        Evaluation.read(tmp_path / "evaluation.json")


def test_infinite_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        measured(0, {"row minima": float("inf")})


def test_a_share_that_is_not_nothing_is_not_written_as_nothing() -> None:
    assert [format_share(value) for value in (None, 0.0, 1e-9, 0.5)] == ["-", "0.0 %", "<0.1 %", "50.0 %"]
