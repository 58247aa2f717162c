"""`kdgat data inspect` of trees, as a user calls it."""

import json

import pytest
from skimage.io import imread

from kdgat.base import UserError
from kdgat.trees.reading.picture import draw_trees
from tests.support.command_line import kdgat

# A comb: soma, then three leaves along a stem; lengths 3, 3, 3, 4 and 4.
COMB = "1 1 0 0 0 1 -1\n2 3 3 0 0 1 1\n3 3 6 0 0 1 2\n4 3 9 0 0 1 3\n5 3 3 4 0 1 2\n6 2 6 4 0 1 3\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "comb.swc").write_text(COMB)
    (tmp_path / "twin.swc").write_text(COMB)
    (tmp_path / "labels.csv").write_text("file,label\ncomb,a\n")
    return tmp_path


def test_a_table_shows_size_shape_and_label(root):
    comb, twin = json.loads(kdgat("data", "inspect", root, "--json", status=0).stdout)
    assert (comb["num_nodes"], comb["num_branches"], comb["num_leaves"], comb["depth"]) == (6, 5, 3, 3)
    assert (comb["total_length"], comb["median_edge"], comb["asymmetry"]) == (17, 3, 1)
    assert (comb["label"], comb["notes"], comb["usable"]) == ("a", [], True)
    assert (twin["label"], twin["notes"]) == (None, ["same nodes in the same places as comb"])
    text = kdgat("data", "inspect", root, status=0).stdout
    assert "no row for twin.swc" in text


def test_an_unusable_file_is_a_row_with_its_reason_and_status_1(root):
    (root / "bad.swc").write_text("1 1 0 0 0 1 1\n2 x 0 0 0 1 1\n")
    text = kdgat("data", "inspect", root, status=1).stdout
    assert "bad.swc: line 2: type is 'x', expected a number" in text
    bad = json.loads(kdgat("data", "inspect", root, "--json", status=1).stdout)[0]
    assert (bad["name"], bad["usable"], bad["num_nodes"]) == ("bad", False, 0)


@pytest.mark.parametrize("suffix", [".svg", ".html", ".png"])
def test_a_picture_is_one_page_that_needs_no_network(root, suffix):
    page = root / "pictures" / f"page{suffix}"
    assert "2 trees" in kdgat("data", "inspect", root, "--picture", page, status=0).stdout
    if suffix == ".png":
        assert imread(page).shape[:2] == (254, 440)
        assert len({tuple(pixel) for pixel in imread(page).reshape(-1, 3)}) > 3
    else:
        text = page.read_text()
        assert (text.count("<path "), text.count("<circle "), text.count("<text ")) == (4, 2, 4)
        assert "src=" not in text
        assert "href=" not in text


def test_loops_are_counted(tmp_path):
    ring = {"type": "LineString", "coordinates": [[0, 0], [10, 0], [10, 10], [0, 0], [0, -9]]}
    (tmp_path / "ring.geojson").write_text(json.dumps({"type": "Feature", "properties": {}, "geometry": ring}))
    [found] = json.loads(kdgat("data", "inspect", tmp_path, "--json", status=0).stdout)
    assert (found["loops"], found["notes"][-1]) == (1, "1 loop cut where farthest from the root")
    header = kdgat("data", "inspect", tmp_path, status=0).stdout.splitlines()[0].split()
    assert header.index("loops") == header.index("leaves") + 1


def test_wrong_pictures_are_refused(root):
    assert ".pdf' is none of" in kdgat("data", "inspect", root, "--picture", root / "x.pdf", status=1).stderr
    with pytest.raises(UserError, match="no tree to draw"):
        draw_trees(root / "x.svg", [], [])
    assert "are for trees" in kdgat("data", "inspect", "--dataset", "x", "--picture", "y.svg", status=2).stderr
