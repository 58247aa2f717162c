from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdgat.family.report import write_report
from kdgat.run import Interval, OutputDirectory
from kdgat.trees.evaluation.results import Memory, Point, TreesResults
from kdgat.trees.names import PREPARE
from tests.support.page import Page
from tests.trees.small_runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trees") / "run"
    make_run(path)
    return path


@pytest.fixture(scope="module")
def results(run: Path) -> TreesResults:
    return TreesResults.read(run / "results.json")


@pytest.fixture(scope="module")
def page(run: Path) -> Page:
    return Page.of_report(write_report(run))


@pytest.fixture
def page_of(results: TreesResults, tmp_path: Path) -> Callable[..., Page]:
    """Return the page of the same results with some other values, without the stages of the run."""

    def make(**update: Any) -> Page:
        results.model_copy(update=update).write(tmp_path / "results.json")
        return Page.of_report(write_report(tmp_path))

    return make


def alternatives(page: Page, beginning: str) -> list[str]:
    return [text for text in page.plots.values() if text.startswith(f"img: {beginning}")]


def test_the_conclusions_and_growth_beside_its_baselines_come_first(page: Page, results: TreesResults) -> None:
    words = page.words()
    for conclusion in results.conclusions:
        assert conclusion[1:] in words
    assert "Growth: distance between predicted and true children" in words.partition("Every table")[0]


def test_every_method_baseline_and_share_of_labels_is_in_a_table_and_in_a_figure(
    page: Page, results: TreesResults
) -> None:
    words = page.words()
    methods = {row.method for row in results.growth} | {row.method for row in results.order}
    assert all(method in words for method in methods | {row.method for row in results.scores})
    for fraction in (0.4, 1.0):
        (figure,) = [
            text for text in alternatives(page, "accuracy") if f", {_num_labels(results, fraction)} lab" in text
        ]
        for row in results.scores:
            if row.label_fraction == fraction:
                assert f"{row.method} {row.score.text}" in figure


def _num_labels(results: TreesResults, fraction: float) -> str:
    return f"{next(row.num_labels for row in results.scores if row.label_fraction == fraction):.0f}"


def test_histograms_hold_all_children_whatever_the_width_of_a_bin(page: Page, results: TreesResults) -> None:
    assert len(alternatives(page, "Histograms of ")) == len(results.shares) >= 3
    for identifier, alternative in page.plots.items():
        if not alternative.startswith("img: Histograms of "):
            continue
        for trace in json.loads(page.data[f"{identifier}-data"])["data"]:
            area = sum(
                height * (high - low) for low, high, height in zip(trace["x"], trace["x"][1:], trace["y"], strict=False)
            )
            assert area == pytest.approx(trace["x"][2] - trace["x"][1], rel=1e-3), (alternative, trace["name"])


def test_trees_are_drawn_whole_and_thicker_where_their_branches_are(page: Page, results: TreesResults) -> None:
    drawn = {text: json.loads(page.data[f"{identifier}-data"])["data"] for identifier, text in page.plots.items()}
    for tree in results.pictures:
        (lines,) = [data for text, data in drawn.items() if tree.name in text]
        *branches, root = lines
        assert sum(trace["x"].count(None) for trace in branches) == len(tree.parent) - 1
        assert [trace["line"]["width"] for trace in branches] == sorted({t["line"]["width"] for t in branches})
        assert root["x"] == [x for x, parent in zip(tree.x, tree.parent, strict=True) if parent < 0]
        assert tree.label is not None


def test_the_map_names_trees_and_is_coloured_by_class_or_by_number(
    page: Page, results: TreesResults, page_of: Callable[..., Page]
) -> None:
    (text,) = alternatives(page, "Map of the embeddings")
    assert all(label in text for label in results.classes)
    points = [Point(name=f"tree {place}", target=float(place), x=place, y=0.0) for place in range(3)]
    other = page_of(task="number", classes=[], map=points)
    (identifier,) = [key for key, text in other.plots.items() if "Map of the embeddings" in text]
    (trace,) = json.loads(other.data[f"{identifier}-data"])["data"]
    assert trace["marker"]["color"] == [0.0, 1.0, 2.0]
    assert trace["customdata"][2] == ["tree 2", "2"]


def test_data_says_what_was_refused_and_repaired(run: Path, results: TreesResults) -> None:
    output = OutputDirectory(run)
    (record,) = [record for record in output.read_index().stages if record.stage == PREPARE]
    directory = output.stage_directory(record)
    path, hashes = directory.path / "summary.json", directory.hashes_path
    before, noted = path.read_text(encoding="utf-8"), hashes.read_bytes()
    summary = {**json.loads(before), "refused": [["a.swc", "line 3: no number"]], "notes": ["b: two roots joined"]}
    try:
        path.write_text(json.dumps(summary))
        hashes.unlink()  # it has this file as it was
        words = Page.of_report(write_report(run)).words()
    finally:
        path.write_text(before)
        hashes.write_bytes(noted)
    assert "Files refused: 1; repairs made while reading: 1" in words
    assert "a.swc: line 3: no number" in words
    assert "b: two roots joined" in words
    for split, count in results.trees.items():
        assert f"{split}{count}{results.nodes[split]:,}" in words  # cells of one row


def test_training_curves_are_those_of_each_share_of_labels(page: Page) -> None:
    names = [text.removeprefix("img: Losses of ").split(" over")[0] for text in alternatives(page, "Losses of ")]
    parts = [f"{name}, {share}% of the labels" for name in ("Fine-tuned", "From scratch", "GIN") for share in (40, 100)]
    assert names == ["Pretraining", *parts]


def test_memory_is_shown_where_it_was_measured(page: Page, page_of: Callable[..., Page]) -> None:
    assert "Peak memory" in page.words()
    assert "Peak memory" not in page_of(memory=None).words()
    memory = Memory(predicted_bytes=110 * 2**20, measured_bytes=100 * 2**20, where="GPU")
    assert "GPU110.0100.0+10.0%" in page_of(memory=memory).words()


def test_without_labels_or_pairs_the_page_has_what_pretraining_predicts_alone(page_of: Callable[..., Page]) -> None:
    page = page_of(task="none", classes=[], scores=[], order=[], map=[], pictures=[])
    words = page.words()
    assert "the trees have no labels" in words
    assert "run.json: without it" in words
    assert "With labels" not in words
    assert {text.split(" of ")[0] for text in page.plots.values()} == {"img: Histograms"}


def test_intervals_are_drawn_as_they_are_and_a_single_seed_has_none(
    page: Page, results: TreesResults, page_of: Callable[..., Page]
) -> None:
    assert all("labelled trees, one seed;" in text for text in alternatives(page, "accuracy"))
    wide = Interval(mean=0.5, low=-0.4, high=1.2, count=2)
    other = page_of(scores=[row.model_copy(update={"score": wide}) for row in results.scores])
    identifier = next(key for key, text in other.plots.items() if text.startswith("img: accuracy"))
    figure = json.loads(other.data[f"{identifier}-data"])
    assert figure["data"][0]["error_x"]["arrayminus"] == [pytest.approx(0.9)]
    assert figure["layout"]["xaxis"]["range"] == [-0.02, 1.02]


def test_a_score_far_below_all_others_does_not_hide_how_they_differ(
    results: TreesResults, page_of: Callable[..., Page]
) -> None:
    first, *others = [row for row in results.scores if row.label_fraction == 1.0]
    bad = Interval(mean=-200.0, low=-200.0, high=-200.0, count=1)
    page = page_of(task="number", classes=[], scores=[first.model_copy(update={"score": bad}), *others])
    identifier, text = next(pair for pair in page.plots.items() if pair[1].startswith("img: R²"))
    assert "Triangles: below -1." in text
    assert f"{first.method} -200.000" in text
    figure = json.loads(page.data[identifier + "-data"])
    assert figure["layout"]["xaxis"]["range"] == [-1.04, 1.04]
    assert figure["data"][0]["marker"]["symbol"] == "triangle-left"


def test_names_cannot_smuggle_markup_into_the_page(results: TreesResults, page_of: Callable[..., Page]) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    pictures = [drawn.model_copy(update={"name": evil, "label": evil}) for drawn in results.pictures]
    points = [point.model_copy(update={"name": evil, "label": evil}) for point in results.map]
    page = page_of(pictures=pictures, map=points, classes=[evil])
    assert "img" not in page.tags
    assert evil in page.words()
