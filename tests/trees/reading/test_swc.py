"""Every quirk of SWC is read and noted with its line, or refused with it."""

import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.trees.reading import ReadError
from kdgat.trees.reading.swc import read_swc

SHARED = Path(__file__).parents[4] / "shared" / "data"
REAL = sorted((SHARED / "swc").glob("*.swc"))
ODD = sorted((SHARED / "swc_edge_cases").glob("*.swc"))
CROSS = "1 2 0 0 0 1 -1\n2 2 1 0 0 1 1\n3 2 2 1 0 1 2\n4 2 2 -1 0 1 2\n"


def read(folder, text, **options):
    path = folder / "tree.swc"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_swc(path, **options)


def same_tree(tree, other):
    return all(np.array_equal(getattr(tree, name), getattr(other, name)) for name in ("parent", "position", "radius"))


def test_a_plain_file_is_read_as_it_is(tmp_path):
    result = read(tmp_path, CROSS)
    assert result.tree.parent.tolist() == [-1, 0, 1, 1]
    assert result.tree.position.tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 0], [2, -1, 0]]
    assert (result.tree.kind.tolist(), result.tree.name, result.notes) == ([2, 2, 2, 2], "tree", ())


@pytest.mark.parametrize(
    ("text", "note"),
    [
        pytest.param(b"# Gr\xf6\xdfe in \xb5m\n" + CROSS.encode(), None, id="latin-1 heading"),
        pytest.param("# Größe in \u2028 µm\n" + CROSS, None, id="utf-8 heading"),
        pytest.param(b"\xef\xbb\xbf" + CROSS.encode(), None, id="byte order mark"),
        pytest.param(CROSS.encode("utf-16"), None, id="utf-16"),
        pytest.param(CROSS.replace("\n", "\r\n"), None, id="lines of Windows"),
        pytest.param(CROSS.replace("\n", "\r"), None, id="lines of an old Macintosh"),
        pytest.param(CROSS.replace("\n", " # soma\n\n"), None, id="comments behind rows, blank lines"),
        pytest.param(CROSS.replace(" ", "\t "), None, id="tabs"),
        pytest.param("\n".join(reversed(CROSS.splitlines())), None, id="children first"),
        pytest.param("n T x y z R P\n" + CROSS, "line 1: taken for a heading", id="heading without #"),
        pytest.param(CROSS.replace(" ", ","), None, id="separated by commas"),
        pytest.param(CROSS.replace(" ", ", "), None, id="separated by commas and blanks"),
        pytest.param(CROSS.replace(" 1 2\n", " 1,0 2\n"), "lines 3, 4: commas read as decimal points", id="commas"),
        pytest.param(CROSS.replace(" 1 2\n", ";1,0;2\n"), "lines 3, 4: commas read as decimal points", id="semicolons"),
        pytest.param(CROSS.replace("\n", " 7 8\n"), "lines 1, 2, 3, 4: columns behind the seventh", id="more columns"),
        pytest.param(CROSS + "2 2 1 0 0 1 1\n", "line 5: the same row stands before; dropped", id="a row twice"),
        pytest.param(CROSS.replace(" -1\n", " 1\n", 1), "line 1: its own parent", id="own parent"),
        pytest.param(CROSS.replace(" -1\n", " 77\n", 1), "line 1: no row has the id of the parent", id="no parent"),
        pytest.param(CROSS + "9 2 5 5 5 1 -1\n", r"2 roots \(lines 1, 5\): kept that of line 1", id="two roots"),
        pytest.param(
            CROSS + "9 2 5 5 5 1 8\n8 2 6 6 6 1 -1\n", r"lines 1, 6\): kept that of line 1 with 4 of 6", id="two trees"
        ),
        pytest.param(CROSS + "9 2 1 0 0 4 2\n", "line 5: in the place of the parent", id="an edge of length zero"),
    ],
)  # fmt: skip
def test_a_quirk_changes_nothing_and_is_noted(tmp_path, text, note):
    plain, result = read(tmp_path, CROSS), read(tmp_path, text)
    if note is None:
        assert result.notes == ()
    else:
        assert any(re.search(note, line) for line in result.notes), result.notes
    order = np.lexsort(result.tree.position.T[::-1]), np.lexsort(plain.tree.position.T[::-1])
    assert np.array_equal(result.tree.position[order[0]], plain.tree.position[order[1]])
    assert np.array_equal(result.tree.depth[order[0]], plain.tree.depth[order[1]])
    assert result.tree.radius.tolist() == plain.tree.radius.tolist()


def test_ids_may_have_gaps_and_come_in_any_order(tmp_path):
    renamed = "700 2 2 1 0 1 20\n20 2 1 0 0 1 0\n3 2 2 -1 0 1 20\n0 2 0 0 0 1 -1\n"
    assert same_tree(read(tmp_path, renamed).tree, read(tmp_path, CROSS).tree)


@pytest.mark.parametrize("radius", ["-1", "nan", "inf"])
def test_a_radius_that_is_none_is_unknown(tmp_path, radius):
    result = read(tmp_path, CROSS.replace("0 1 1\n", f"0 {radius} 1\n"))
    assert result.tree.radius.tolist() == [1, 0, 1, 1]
    assert result.notes == ("line 2: the radius is below 0 or not finite; taken for unknown (0)",)


def test_types_of_any_number_are_kept(tmp_path):
    assert read(tmp_path, CROSS.replace("4 2 ", "4 17 ")).tree.kind.tolist() == [2, 2, 2, 17]


def test_components_are_joined_to_the_first_root(tmp_path):
    result = read(tmp_path, CROSS + "9 2 5 5 5 1 -1\n10 2 6 5 5 1 9\n", components="join")
    assert result.tree.num_children[0] == 2
    assert result.tree.num_nodes == 6
    assert result.notes == ("2 roots (lines 1, 5): joined to the one of line 1",)


@pytest.mark.parametrize(
    ("soma", "middle", "radius"),
    [
        pytest.param("1 1 0 0 0 5 -1\n", [0, 0, 0], 5, id="one point"),
        pytest.param("1 1 0 0 0 5 -1\n2 1 0 5 0 5 1\n3 1 0 -5 0 5 1\n", [0, 0, 0], 5, id="three points"),
        pytest.param("1 1 0 0 0 5 -1\n2 1 0 5 0 5 1\n3 1 0 -5 0 5 2\n", [0, 0, 0], 5, id="a cylinder"),
        pytest.param(
            "1 1 2 0 0 0 -1\n2 1 0 2 0 0 1\n3 1 -2 0 0 0 2\n4 1 0 -2 0 0 3\n", [0, 0, 0], 2, id="an outline"
        ),
    ],
)  # fmt: skip
def test_a_soma_is_one_node(tmp_path, soma, middle, radius):
    last = soma.count("\n")
    result = read(tmp_path, soma + f"11 3 9 0 0 1 1\n12 3 0 9 0 1 {last}\n13 3 0 12 0 1 12\n")
    assert result.tree.parent.tolist() == [-1, 0, 0, 2]
    assert (result.tree.position[0].tolist(), result.tree.radius[0]) == (middle, radius)
    assert result.tree.length.tolist() == [0, 9, 9, 3]
    assert len(result.notes) == (last > 1)


def test_a_second_soma_is_a_root_of_its_own(tmp_path):
    result = read(tmp_path, "1 1 0 0 0 1 -1\n2 3 1 0 0 1 1\n3 1 9 9 9 1 -1\n")
    assert result.notes == ("2 roots (lines 1, 3): kept that of line 1 with 2 of 3 nodes",)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        pytest.param("", None, "holds no node", id="empty"),
        pytest.param("# a comment\n\n", None, "holds no node", id="comments alone"),
        pytest.param(b"\x89PNG\r\n\x1a\n\0\0\0", 3, "this is no text", id="binary"),
        pytest.param("<html>\n<p>404</p>\n", None, "holds no node", id="a page of the web"),
        pytest.param(CROSS + "5 2 0 0\n", 5, "4 columns, expected id, type, x", id="cut off"),
        pytest.param(CROSS + "5 2 0 east 0 1 1\n", 5, "y is 'east', expected a number", id="text"),
        pytest.param(CROSS + "5 2 nan 0 0 1 1\n", 5, "x is nan, expected a number", id="not a number"),
        pytest.param(CROSS + "5 2 0 0 inf 1 1\n", 5, "z is inf", id="infinite"),
        pytest.param(CROSS + "5 2 0 0 0 1 nan\n", 5, "parent is nan", id="parent not a number"),
        pytest.param(CROSS + "5.5 2 0 0 0 1 1\n", 5, "id is 5.5, expected a whole number", id="half an id"),
        pytest.param(CROSS + "-5 2 0 0 0 1 1\n", 5, "id is -5, expected 0 or more", id="id below zero"),
        pytest.param(CROSS + "2 2 9 9 9 1 1\n", 5, "id 2 has other values than on line 2", id="an id twice"),
        pytest.param("# ring\n5 2 0 0 0 1 7\n6 2 1 0 0 1 5\n7 2 1 1 0 1 6\n", 2, "its own ancestor", id="a ring"),
        pytest.param(CROSS + "5 2 0 9 0 1 6\n6 2 9 0 0 1 5\n", 5, "node 5 is its own ancestor", id="a ring beside"),
        pytest.param(CROSS + "8 2 7 7 7 1 6\n5 2 0 9 0 1 6\n6 2 9 0 0 1 5\n", 6, "node 5", id="a branch of a ring"),
        pytest.param("#\n1 1 0 0 0 1 -1\n", 2, "no edge is left", id="a point"),
        pytest.param("1 1 0 0 0 1 -1\n2 3 0 0 0 1 1\n", 1, "no edge is left", id="two nodes in one place"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused_with_its_line(tmp_path, text, line, reason):
    with pytest.raises(ReadError, match=reason) as caught:
        read(tmp_path, text)
    where = f"{tmp_path / 'tree.swc'}" + ("" if line is None else f":{line}")
    assert str(caught.value).startswith(f"{where}: ")
    assert caught.value.line == line


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ReadError, match="cannot be opened: No such file"):
        read_swc(tmp_path / "nowhere.swc")


@given(data=st.binary(max_size=200) | st.text("0123456789 .,;-#\nena", max_size=200).map(str.encode))
def test_any_bytes_are_a_tree_or_refused(data, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.swc"
    path.write_bytes(data)
    try:
        tree = read_swc(path).tree
    except ReadError:
        return
    assert tree.num_nodes > 1
    assert (tree.length[1:] > 0).all()


def test_twenty_thousand_nodes_take_well_under_a_second(tmp_path):
    path, place = tmp_path / "long.swc", np.random.default_rng(0).random((20_000, 3))
    path.write_text("".join(f"{i} 3 {x} {y} {z} 1 {i // 2 or -1}\n" for i, (x, y, z) in enumerate(place, 1)))
    started = time.process_time()
    assert read_swc(path).tree.num_nodes == 20_000
    assert time.process_time() - started < 1


@pytest.mark.skipif(not REAL, reason="needs ../shared/data/swc")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_every_real_neuron_is_read(path):
    rows = [line.split() for line in path.read_text("latin-1").splitlines() if line[:1].strip("#")]
    result = read_swc(path)
    merged = len(rows) - result.tree.num_nodes
    assert 0 <= merged <= 77
    assert bool(merged) == bool(result.notes)
    assert (result.tree.length[1:] > 0).all()


@pytest.mark.skipif(not ODD, reason="needs ../shared/data/swc_edge_cases")
@pytest.mark.parametrize("path", ODD, ids=lambda path: path.stem)
def test_every_odd_file_is_read_or_refused_for_having_no_edge(path):
    refused = {"point_soma": 33, "reversed_NRN_neurite_order": 3}
    if path.stem in refused:
        with pytest.raises(ReadError, match="no edge is left") as caught:
            read_swc(path)
        assert caught.value.line == refused[path.stem]
    else:
        assert read_swc(path).tree.num_nodes > 1
