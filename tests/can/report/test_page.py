from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kdgat.base import UserError
from kdgat.can.evaluation.results import Results
from kdgat.can.evaluation.scores import scores_path
from kdgat.can.evaluation.tables import NOTHING_TESTED
from kdgat.can.report.names import model_name
from kdgat.cli.report import app
from kdgat.family.report import renew_report, write_report
from kdgat.run import OutputDirectory, RunError, StageState
from tests.can.report.conftest import MODELS, SCENARIOS, make_output
from tests.support.page import Page


@pytest.fixture(scope="module")
def page(example_output: Path) -> Page:
    return Page.of_report(write_report(example_output))


@pytest.fixture
def output(example_output: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(example_output, tmp_path / "run"))


def rewrite(output: Path, **changes: object) -> None:
    path = OutputDirectory(output).results_path
    Results.model_validate({**Results.read(path).model_dump(mode="json"), **changes}).write(path)


def words_of(output: Path) -> str:
    return Page.of_report(write_report(output)).words()


def test_report_lies_beside_the_results(example_output: Path) -> None:
    assert write_report(example_output) == example_output / "report.html"


def test_the_first_screen_has_the_answer_and_what_to_do_next_and_only_results_by_attack_are_unfolded(
    example_output: Path,
) -> None:
    text = write_report(example_output).read_text(encoding="utf-8")
    first, _, rest = text.partition('<details class="section"')
    assert "attacks found" in first
    assert f"kdgat detect RECORDING --model {example_output}" in first
    assert first.count("<table>") == 1
    assert re.findall(r'<details class="section" id="(\w+)" open>', text) == ["hidden"]
    assert "recall of attacked windows by kind of attack" in rest.partition("</details>")[0]


def test_page_names_every_scenario_recording_and_model(page: Page) -> None:
    words = page.words()
    assert len(page.plots) >= 25
    for scenario, recordings in SCENARIOS.items():
        assert scenario in words
        assert all(name in words for name in recordings)
    assert {model_name(model) for model in MODELS} <= set(page.row_names)
    for count in ("1,710,000", "1,100,000", "86,000", "55,000"):
        assert count in words


def test_page_states_rule_false_alarms_and_provenance(page: Page) -> None:
    words = page.words()
    assert "A window is an alarm if its attack probability, sigmoid(logit / 1.4 - 0.2), is at least 0.5." in words
    assert re.search(r"of 4,000 benign validation windows raise an alarm: 0\.\d{3}% \(95% interval", words)
    assert "curriculum-large-seed2" in words
    assert "Sonata_DoS.csv:17: 9 bytes, at most 8" in words
    assert "same messages as Sonata_DoS: not used again" in words
    assert "Not in this report" not in words


def test_page_says_what_hides_behind_the_metrics(page: Page) -> None:
    words = page.words()
    assert "What hides behind F1" in words
    assert "10+ msg" in words
    assert "recall of attacked windows by kind of attack" in words
    assert "dos" in words


def test_page_says_whether_alarms_name_the_attacked_identifiers(page: Page) -> None:
    words = page.words()
    assert "Are attacked IDs named?" in words
    assert "480 of 500" in words
    assert "0.812" in words or "0.813" in words
    assert "ordered by curriculum, behind the one that the habits of identifiers speak against" in words


def test_page_shows_size_and_latency_of_models_on_a_named_machine(page: Page) -> None:
    words = page.words()
    assert "of seed 0 on a processor, one thread" in words
    assert all(cell in words for cell in ("55,000", "231", "0.75", "1.25", "4,321"))


def test_windows_are_mapped_by_car_and_by_kind_of_attack(page: Page) -> None:
    maps = [alternative for alternative in page.plots.values() if alternative.startswith("img: Scatter plot of 120")]
    assert len(maps) == 2
    assert "drive-7 (30)" in maps[0]
    assert "virtual vehicles (30)" in maps[0]
    assert "no attack (40), dos (40), suppression (40)" in maps[1]
    assert "64% of the variance" in maps[1]


def test_what_an_older_run_did_not_measure_is_named(output: Path) -> None:
    (output / "costs.json").unlink()
    (output / "embeddings.npz").unlink()
    scenarios = Results.read(output / "results.json").model_dump(mode="json")["scenarios"]
    rewrite(output, scenarios={name: {**row, "explanations": None} for name, row in scenarios.items()})
    words = words_of(output)
    assert "does not say whether alarms name the attacked identifiers" in words
    assert "costs.json: neither size nor latency" in words
    assert "embeddings.npz: no map of windows" in words


def test_training_figures_separate_seeds_and_fits(page: Page) -> None:
    titles = page.words()
    assert "fusion, large, dqn" in titles
    assert "fusion, large, mlp" in titles
    losses = [
        alternative for alternative in page.plots.values() if alternative.startswith("img: Losses of normal, large")
    ]
    assert len(losses) == 1
    assert "3 seeds" in losses[0]
    assert "seed 2 keeps epoch 8" in losses[0]


def test_missing_parts_are_named(output: Path) -> None:
    scores_path(output, "attack_free").unlink()
    metrics = next(output.glob("stages/normal-large-seed1-*/metrics.jsonl"))
    metrics.unlink()
    next(output.glob("stages/prepare-*/provenance.json")).unlink()
    rewrite(output, injection=None, curves={}, models={}, parameter_counts={})
    words = words_of(output)
    assert "Not in this report" in words
    assert "scores/attack_free.npz: no score along the recordings of attack_free." in words
    assert "metrics.jsonl: no training curve of normal-large-seed1." in words
    assert "provenance.json: no provenance of prepare-shared-seed0." in words
    assert "does not say which attacks were injected" in words
    assert "no curves of test_01_known_vehicle_known_attack" in words
    assert "has no models" in words
    assert "no parameter counts" in words


def test_default_detector_is_named_once_with_what_it_is_made_of_and_its_seeds(output: Path) -> None:
    detector = Results.read(OutputDirectory(output).results_path).detector.model_dump(mode="json")
    assert "curriculum GAT, mean of 3 seeds (seeds 0, 1, 2)" in words_of(output)
    rewrite(output, detector={**detector, "name": "ensemble", "models": ["ensemble (mean of normal)"], "seeds": [0]})
    assert "ensemble (mean of normal; seed 0)" in words_of(output)


def test_page_shows_no_marks_of_source_text(page: Page) -> None:
    assert "`" not in page.words()


def test_run_without_test_recordings_says_so_once_and_leaves_out_what_would_be_empty(output: Path) -> None:
    shutil.rmtree(scores_path(output, "attack_free").parent)
    models = {name: {str(seed): {} for seed in (0, 1, 2)} for name in MODELS}
    rewrite(output, scenarios={}, f1={}, curves={}, models=models)
    page = Page.of_report(write_report(output))
    words = page.words()
    assert words.count(NOTHING_TESTED) == 1
    for absent in (
        "Not in results.json",
        "Not in this report",
        "ROC",
        "Confusion",
        "Scores along",
        "attacked IDs",
    ):
        assert absent not in words
    assert not any("F1 of the default detector" in alternative for alternative in page.plots.values())
    assert "of seed 0 on a processor, one thread" in words


def test_results_alone_are_enough_for_a_report(example_output: Path, tmp_path: Path) -> None:
    shutil.copy(example_output / "results.json", tmp_path)
    words = words_of(tmp_path)
    assert "run.json: without it neither training curves" in words
    assert "test_02_unknown_vehicle_known_attack" in words


def test_unfinished_stage_is_named(output: Path) -> None:
    directory = OutputDirectory(output)
    index = directory.read_index()
    index.stages[-1].state = StageState.PAUSED
    index.stages[-1].message = "out of time"
    directory.write_index(index)
    assert "fusion-large-seed2: the stage is paused, not finished. out of time" in words_of(output)


def test_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither run\.json nor results\.json"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="not a directory"):
        write_report(tmp_path / "absent")


def test_run_without_results_shows_its_curves(output: Path) -> None:
    (output / "results.json").unlink()
    directory = OutputDirectory(output)
    index = directory.read_index()
    index.stages[3].state = StageState.FAILED
    directory.write_index(index)
    page = Page.of_report(write_report(output))
    assert f"{index.stages[3].name} is failed" in page.words()
    assert any(text.startswith("img: Losses of normal") for text in page.plots.values())


def test_a_report_is_made_anew_while_its_run_goes_on_once_when_it_has_ended_and_never_asks_for_it_by_itself(
    output: Path,
) -> None:
    directory = OutputDirectory(output)
    index = directory.read_index()
    page = write_report(output)
    for state, last_s, next_s in ((StageState.RUNNING, 0, 10), (StageState.FAILED, 10, 0)):
        page.unlink()
        index.stages[4].state = state
        directory.write_index(index)
        assert renew_report(output, last_s) == next_s
        assert "refresh" not in page.read_text().partition("<style>")[0]
    page.unlink()
    assert renew_report(output, 0) == 0
    assert not page.exists()


def test_damaged_files_are_named(output: Path) -> None:
    scores_path(output, "attack_free").write_bytes(b"not a zip file")
    with pytest.raises(UserError, match=r"attack_free\.npz"):
        write_report(output)
    (output / "results.json").write_text("{")
    with pytest.raises(RunError, match=r"results\.json"):
        write_report(output)


def test_names_with_markup_stay_text(output: Path) -> None:
    results = Results.read(output / "results.json").model_dump(mode="json")
    evil = "</script><img src=x onerror=alert(1)>"
    scenarios = results["scenarios"]
    scenarios[evil] = scenarios.pop("test_01_known_vehicle_known_attack")
    rewrite(output, scenarios=scenarios, f1={name: row["f1"] for name, row in scenarios.items()}, dataset=evil)
    page = Page.of_report(write_report(output))
    assert "img" not in page.tags
    assert evil in page.words()
    assert all(json.loads(text) for text in page.data.values())


def test_long_recordings_keep_the_page_small(tmp_path: Path) -> None:
    Page.of_report(write_report(make_output(tmp_path, num_windows=40_000, seeds=(0,))))


def test_command_prints_the_path_unless_quiet(example_output: Path) -> None:
    loud = CliRunner().invoke(app, [str(example_output)])
    assert loud.exit_code == 0
    assert loud.stdout.strip() == str(example_output / "report.html")
    quiet = CliRunner().invoke(app, [str(example_output), "--quiet"])
    assert (quiet.exit_code, quiet.stdout) == (0, "")
