"""The morning's report says what came, what was compared, and why it was decided so."""

from pathlib import Path

from kdgat.can.nightly.comparison import IN_SERVICE, NEW, Comparison
from kdgat.can.nightly.new_recordings import NewRecordings
from kdgat.can.nightly.report import NightlyReport, idle_run
from kdgat.family.night import NightlyRecord
from kdgat.registry import Judgement, ModelEntry, Promotion, PromotionRule, ServiceChange


def test_the_report_says_what_came_what_was_compared_and_why_it_was_decided_so(tmp_path: Path) -> None:
    found = NewRecordings(
        recordings={},
        new=["train_1__a.parquet"],
        changed=["test_1__b.parquet"],
        imported={"train_1/a.csv": "train_1__a.parquet"},
        refused={"inbox/c.csv": "no scenario in its name"},
        waiting=["d.csv"],
    )
    scores = {"f1": 0.9, "false_alarm_rate": 0.0, "num_windows": 1234.0}
    report = NightlyReport(
        dataset="cars",
        new_recordings=found,
        record=NightlyRecord(created="", recordings="", config="", start="cars-old"),
        entry=ModelEntry(id="cars-new", family="can", dataset="cars", content="0"),
        compared_with=ModelEntry(id="cars-old", family="can", dataset="cars", content="1"),
        comparison=Comparison(
            metrics={
                NEW: {"test_1": scores},
                IN_SERVICE: {"test_1": scores | {"f1": 0.8}},
                "cars-best": {"test_1": scores},
            },
            recordings=["test_1/b"],
            left_out={"test_1/e": "in_service was trained on it"},
        ),
        rule=PromotionRule(),
        decision=Promotion(True, ("mean f1 0.8 -> 0.9",)),
        run=tmp_path,
        unfinished={tmp_path / "night-0": 3_400_000},
        warning="mean f1 1.0000 cannot rise",
    )
    assert "report.html" not in report.markdown()
    (tmp_path / "report.html").write_text("")
    text = report.markdown()
    for words in (
        "**Warning**: mean f1 1.0000 cannot rise.",
        "Rule: mean f1 over scenarios better by 0.05 of the error, none worse by more than 0.01",
        f"`{tmp_path}/report.html`",
        "# cars: the new model goes into service",
        "`cars-new`, trained from the weights of `cars-old`; in service: `cars-old`",
        "* mean f1 0.8 -> 0.9",
        "* `train_1__a.parquet` from `train_1/a.csv`",
        "* `test_1__b.parquet`",
        "* `inbox/c.csv`: no scenario in its name",
        "* `d.csv`",
        "| test_1 | 1,234 | 0.9000 | 0.8000 | +0.1000 | 0.0000 | 0.0000 | +0.0000 |",
        "* `test_1/e`: in_service was trained on it",
        "Held to what was best before, too: `cars-best`.",
        f"* `{tmp_path}/night-0`: 3.4 MB",
    ):
        assert words in text
    assert report.sentence().startswith("recordings: 1 new, 1 changed, 1 refused, 1 still being written; cars-new went")


def test_the_report_of_a_night_without_new_recordings_says_why_it_trained(tmp_path: Path) -> None:
    entry = ModelEntry(id="cars-new", family="can", dataset="cars", content="0")
    report = NightlyReport(
        dataset="cars",
        new_recordings=NewRecordings(recordings={}),
        record=NightlyRecord(created="", recordings="", config="", start=None),
        entry=entry,
        compared_with=None,
        comparison=Comparison(metrics={}, recordings=[], left_out={}),
        rule=PromotionRule(accept="not_worse", margin=0.001),
        decision=Promotion(False, ("no scenario was measured",)),
        run=tmp_path,
        reason="retrain=always",
    )
    assert report.sentence().startswith("retrain=always; cars-new was registered and did not go into service")
    assert "Trained because of this: retrain=always." in report.markdown()
    assert "below the best so far by no more than 0.001" in report.markdown()


def test_a_quiet_night_still_names_what_it_refused() -> None:
    sentence, text = idle_run("cars", NewRecordings(recordings={}, refused={"c.csv": "broken"}), "cars-old")
    assert sentence == "nothing new: recordings: 1 refused; cars-old stays in service"
    assert "`c.csv`: broken" in text
    assert idle_run("cars", NewRecordings(recordings={}), None)[0].endswith("no model is in service")
    sentence, _ = idle_run("cars", NewRecordings(recordings={}, waiting=["d.csv"]), None)
    assert sentence.endswith("a file that changed less than settle_s seconds ago waits for the next night")
    first = NewRecordings(recordings={}, refused={"c.csv": "broken"}, newly_refused=("c.csv",))
    sentence, text = idle_run("cars", first, "cars-old")
    assert sentence == "every new file was refused: recordings: 1 refused; cars-old stays in service"
    assert text.startswith("# cars: every new file was refused")


def test_a_quiet_night_names_who_holds_the_model_in_service() -> None:
    held = ServiceChange(
        **{"kind": "hold", "family": "can", "dataset": "cars", "previous": "m", "model": "m", "hold": True},
        **{"reason": "it beeps", "by": "ann", "when": "2026-01-01T00:00:00+00:00"},
    )
    sentence, text = idle_run("cars", NewRecordings(recordings={}), "m", held)
    assert sentence.endswith("m stays in service, held by ann since 2026-01-01T00:00:00+00:00: it beeps")
    assert "it beeps" in text


def test_nights_that_promote_nothing_say_so_each_week_and_always_where_no_night_can(tmp_path: Path) -> None:
    refused = [
        Judgement(
            model=f"m{number}", when=f"day {number}", compared_with=None, accepted=False, reasons=(), by="nightly"
        )
        for number in range(1, 15)
    ]

    def standstill(nights: int, *, accepted: bool = False, warning: str = "") -> tuple[str, str]:
        report = NightlyReport(
            dataset="cars",
            new_recordings=NewRecordings(recordings={}),
            record=NightlyRecord(created="", recordings="", config="", start=None),
            entry=ModelEntry(id="cars-new", family="can", dataset="cars", content="0"),
            compared_with=None,
            comparison=Comparison(metrics={}, recordings=[], left_out={}),
            rule=PromotionRule(),
            decision=Promotion(accepted, ("f1 is worse",)),
            run=tmp_path,
            warning=warning,
            refused=refused[:nights],
        )
        return report.standstill(), report.markdown()

    text, report = standstill(7)
    assert text == "nights that trained and promoted nothing since day 1: 7; this one: f1 is worse"
    assert "Nights in a row that promoted nothing: 7." in report
    assert standstill(14)[0]
    assert not standstill(6)[0]
    assert "no night can; nights" in standstill(1, warning="no night can")[0]
    assert not standstill(0, accepted=True, warning="no night can")[0]
