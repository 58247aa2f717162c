from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kdgat.family.report import write_report
from kdgat.lap.evaluation.results import LapResults, headlines
from kdgat.lap.evaluation.stage import collect_results
from kdgat.run import OutputDirectory
from tests.lap.small_evaluations import DISTRIBUTIONS, STAGES, make_run
from tests.support.page import Page

SIZES = (20, 32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_run(tmp_path_factory.mktemp("lap") / "run", sizes=SIZES)
    collect_results(OutputDirectory(path))
    return path


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page.of_report(write_report(run))


def test_every_family_size_and_method_is_in_a_table(page: Page, run: Path) -> None:
    words = page.words()
    for family in DISTRIBUTIONS:
        for size in SIZES:
            assert f"{family}, n = {size}" in words
    results = LapResults.read(run / "results.json")
    for name in {method.name for group in results.groups for method in group.methods}:
        assert name in words


def test_page_says_what_training_is_worth_and_that_every_answer_was_checked(page: Page, run: Path) -> None:
    words = page.words()
    results = LapResults.read(run / "results.json")
    for conclusion in headlines(results):
        assert conclusion[1:] in words  # a sentence begins with a capital
    num_checked = sum(group.num_checked for group in results.groups)
    assert f"{num_checked} test instances solved" in words
    assert "trained mid_2048, " in words


def test_gap_and_time_per_size_growth_per_family_seeds_and_a_loss_per_training_stage_are_drawn(page: Page) -> None:
    assert len(page.plots) == 2 * len(SIZES) + len(DISTRIBUTIONS) + 1 + len(STAGES)


def test_training_curves_of_every_stage_keep_seeds_apart(page: Page) -> None:
    losses = [alternative for alternative in page.plots.values() if "Losses of" in alternative]
    assert [re.search(r"Losses of (\w+)", text)[1] for text in losses] == list(STAGES)  # type: ignore[index]
    assert all("seed 0 keeps" in text and "seed 1 keeps" in text for text in losses)


def test_results_alone_make_a_report_that_says_what_it_lacks(run: Path, tmp_path: Path) -> None:
    LapResults.read(run / "results.json").write(tmp_path / "results.json")
    page = Page.of_report(write_report(tmp_path))
    assert "run.json: without it" in page.words()
    assert any("Time to solve" in alternative for alternative in page.plots.values())


def test_a_library_that_was_not_there_is_named(run: Path, tmp_path: Path) -> None:
    results = LapResults.read(run / "results.json")
    machine = results.machine.model_copy(update={"versions": {"lapx": "not installed"}})
    results.model_copy(update={"machine": machine}).write(tmp_path / "results.json")
    assert "lapx was not installed" in Page.of_report(write_report(tmp_path)).words()


def test_names_cannot_smuggle_markup_into_the_page(run: Path, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    results = LapResults.read(run / "results.json")
    groups = [group.model_copy(update={"family": evil}) for group in results.groups if group.family == "uniform"]
    results.model_copy(update={"groups": groups}).write(tmp_path / "results.json")
    page = Page.of_report(write_report(tmp_path))
    assert "img" not in page.tags
    assert evil in page.words()
    assert all(json.loads(text) for text in page.data.values())
