import base64
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from kdgat.report import Document, Picture, Section, blank, training
from kdgat.report.drawing import HEIGHT, MOST_POINTS, WIDTH, as_data_uri, as_svg
from kdgat.report.markdown import as_markdown

EPOCHS = [0.0, 1.0, 2.0, 3.0]
CURVE = {
    "epoch": EPOCHS,
    "train_loss": [2.0, 1.0, 0.5, 0.4],
    "validation_loss": [2.5, 1.5, None, 1.2],
    "validation_node_loss": [1.0, 0.9, 0.8, 0.7],
    "is_best": [1.0, 1.0, 0.0, 0.0],
}


def drawn(picture: Picture) -> ElementTree.Element:
    return ElementTree.fromstring(as_svg(picture))


def of_kind(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return list(root.iter(f"{{http://www.w3.org/2000/svg}}{name}"))


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]  # type: ignore[misc]


def test_losses_are_drawn_with_their_gaps_and_without_what_the_page_hides() -> None:
    root = drawn(training.losses("GAT", {0: CURVE}))
    lines = of_kind(root, "polyline")
    assert [len(points(line)) for line in lines] == [4, 2]  # after the gap one value is left: a dot
    assert len(of_kind(root, "circle")) == 2  # that one, and the epoch whose weights are kept
    words = " ".join(text.text or "" for text in of_kind(root, "text"))
    assert "train loss" in words
    assert "node loss" not in words


def test_what_falls_goes_down_in_the_picture_and_stays_inside() -> None:
    (first, *_) = of_kind(drawn(training.losses("GAT", {0: CURVE})), "polyline")
    across, down = zip(*points(first), strict=True)
    assert list(across) == sorted(across)
    assert list(down) == sorted(down)  # from the top
    assert 0 < min(across) < max(across) < WIDTH
    assert 0 < min(down) < max(down) < HEIGHT


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios() -> None:
    steep = training.losses("GAT", {0: {"epoch": EPOCHS, "train_loss": [1.0, 0.1, 0.01, 0.001]}})
    (line,) = of_kind(drawn(steep), "polyline")
    heights = [y for _, y in points(line)]
    steps = [after - before for before, after in pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)


def test_a_long_curve_keeps_its_ends() -> None:
    many = [float(epoch) for epoch in range(5000)]
    picture = training.losses("GAT", {0: {"epoch": many, "train_loss": [1.0 + 1 / (1 + epoch) for epoch in many]}})
    (line,) = of_kind(drawn(picture), "polyline")
    assert len(points(line)) <= MOST_POINTS + 1
    alone = training.losses("GAT", {0: {"epoch": many[-1:], "train_loss": [1.0]}})
    assert len(of_kind(drawn(alone), "circle")) == 1


def test_epochs_are_whole_numbers() -> None:
    root = drawn(training.losses("GAT", {0: {"epoch": [0.0, 1.0], "train_loss": [2.0, 1.0]}}))
    below = [text.text for text in of_kind(root, "text") if text.attrib.get("text-anchor") == "middle"]
    assert below == ["0", "1"]


def test_a_figure_without_lines_is_no_picture() -> None:
    assert as_svg(Picture("a", blank(300), "", "")) == ""


def test_the_page_holds_its_pictures() -> None:
    section = Section("training", "Training", pictures={"GAT": [training.losses("GAT", {0: CURVE})]})
    text = as_markdown(Document("A run", [section]), ["F1 test_01_a 0.9"], [], "the end")
    assert text.startswith("# A run\n\n* F1 test_01_a 0.9\n")
    assert "### GAT\n" in text
    assert text.endswith("the end\n")
    svg = base64.b64decode(text.partition("base64,")[2].partition(")")[0]).decode()
    assert as_data_uri(svg) in text
    assert of_kind(ElementTree.fromstring(svg), "polyline")
