import json

import numpy as np
import pytest
import shapely
from pyogrio import raw

from kdgat.trees.reading import ReadError
from kdgat.trees.reading.rivers import read_rivers
from kdgat.trees.structure.tree import contract

# Two sources meet at (0, 0), the river runs on to its outlet at (0, -50); metres.
WEST, EAST = [(-30.0, 40.0), (-20.0, 10.0), (0.0, 0.0)], [(30.0, 40.0), (0.0, 0.0)]
MAIN = [(0.0, 0.0), (5.0, -20.0), (0.0, -50.0)]
FORK = [WEST, EAST, MAIN]


def written(folder, lines, crs="EPSG:32632", suffix=".geojson", kind="LineString"):
    path = folder / f"river{suffix}"
    shapes = [line if isinstance(line, shapely.Geometry) else shapely.LineString(line) for line in lines]
    raw.write(path, shapely.to_wkb(np.array(shapes)), [], [], geometry_type=kind, crs=crs)
    return path


def outlet_of(result):
    return result.tree.position[0].tolist()


@pytest.mark.parametrize("suffix", [".geojson", ".shp"])
def test_a_river_is_rooted_at_its_outlet_and_keeps_its_vertices(tmp_path, suffix):
    (result,) = read_rivers(written(tmp_path, FORK, suffix=suffix))
    assert outlet_of(result) == [0, -50, 0]
    assert result.tree.num_nodes == 6
    assert (result.tree.name, result.notes) == ("river", ())
    assert result.tree.length.sum() == pytest.approx(sum(shapely.LineString(line).length for line in FORK))
    short = contract(result.tree)
    assert short.parent.tolist() == [-1, 0, 1, 1]
    assert {tuple(place[:2]) for place in short.position[2:]} == {WEST[0], EAST[0]}


def test_lines_may_come_in_any_order_and_as_multilines(tmp_path):
    both = shapely.MultiLineString([EAST, MAIN])
    (result,) = read_rivers(written(tmp_path, [both, shapely.MultiLineString([WEST])], kind="MultiLineString"))
    assert (outlet_of(result), result.tree.num_nodes) == ([0, -50, 0], 6)


def test_ends_within_the_tolerance_are_one_and_others_are_not(tmp_path):
    path = written(tmp_path, [WEST, [EAST[0], (0.3, 0.4)], MAIN])
    assert len(read_rivers(path)) == 2
    (result,) = read_rivers(path, tolerance=1.0)
    assert contract(result.tree).num_nodes == 4


def test_a_tributary_may_join_between_the_ends_of_a_line(tmp_path):
    (result,) = read_rivers(written(tmp_path, [WEST, MAIN, [(60.0, -20.0), (5.0, -20.0)]]))
    assert contract(result.tree).num_nodes == 4


def test_a_line_that_was_drawn_upstream_does_not_move_the_outlet(tmp_path):
    (result,) = read_rivers(written(tmp_path, [WEST, EAST[::-1], MAIN]))
    assert outlet_of(result) == [0, -50, 0]
    assert result.notes == ("2 ends that no line leaves: rooted at the one with most river above it",)


def test_a_braid_is_cut_and_noted(tmp_path):
    arm = [(0.0, 0.0), (-9.0, -20.0), (0.0, -50.0)]
    (result,) = read_rivers(written(tmp_path, [*FORK, arm]))
    assert result.notes == ("1 loop cut where farthest from the root",)
    assert outlet_of(result) == [0, -50, 0]
    assert result.tree.num_nodes == 7


def test_random_spanning_trees_of_a_braid_have_its_outlet(tmp_path):
    arm = [(0.0, 0.0), (-9.0, -20.0), (0.0, -50.0)]
    generators = [np.random.default_rng(seed) for seed in range(12)]
    (result,) = read_rivers(written(tmp_path, [*FORK, arm]), generators=generators)
    assert (result.loops, result.notes) == (1, ("1 loop: 12 random spanning trees",))
    assert {tuple(tree.position[0]) for tree in result.trees} == {(0, -50, 0)}
    assert len({tree.parent.tobytes() + tree.position.tobytes() for tree in result.trees}) == 4  # edges of the loop
    (plain,) = read_rivers(written(tmp_path, FORK), generators=generators)
    assert (plain.loops, plain.others, plain.notes) == (0, (), ())


def test_a_circle_of_flow_has_a_root_nevertheless(tmp_path):
    ring = [(0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 0.0)]
    (result,) = read_rivers(written(tmp_path, [ring, [(-9.0, 0.0), (0.0, 0.0)]]))
    assert result.tree.num_nodes == 4
    assert result.notes == ("1 loop cut where farthest from the root",)


def test_each_network_is_a_tree_the_largest_first(tmp_path):
    first, second = read_rivers(written(tmp_path, [[(900.0, 0.0), (900.0, 10.0)], *FORK]))
    assert [first.tree.name, second.tree.name] == ["river-1", "river-2"]
    assert [first.tree.num_nodes, second.tree.num_nodes] == [6, 2]


def test_degrees_become_metres_and_heights_stay(tmp_path):
    path = written(tmp_path, [shapely.LineString([(8, 60, 120), (8.1, 60, 80)])], crs="EPSG:4326")
    (result,) = read_rivers(path)
    assert result.tree.length[1] == pytest.approx(np.hypot(5560, 40), rel=1e-3)
    assert sorted(result.tree.position[:, 2]) == [80, 120]
    assert result.notes == ("degrees turned into metres around the middle of the map",)


def test_shapes_that_are_no_lines_are_left_out_and_noted(tmp_path):
    features = [
        {"type": "Feature", "properties": {}, "geometry": {"type": kind, "coordinates": place}}
        for kind, place in [("Point", [1, 1]), ("LineString", [[0, 0], [0, 1]])]
    ]
    path = tmp_path / "mixed.json"
    path.write_text(
        json.dumps({"type": "FeatureCollection", "features": [*features, {**features[0], "geometry": None}]})
    )
    (result,) = read_rivers(path)
    assert "1 shapes that are no lines left out" in result.notes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be opened as a map"),
        ("{}", "cannot be opened as a map"),
        ('{"type": "FeatureCollection", "features": []}', "holds 0 shapes and no line"),
        ('{"type": "Point", "coordinates": [1, 2]}', "holds 1 shapes and no line"),
        ('{"type": "LineString", "coordinates": [[1, 2], [1, 2]]}', "no length"),
    ],
)
def test_what_holds_no_river_is_refused(tmp_path, text, reason):
    path = tmp_path / "none.geojson"
    path.write_text(text)
    with pytest.raises(ReadError, match=reason):
        read_rivers(path)
    with pytest.raises(ReadError, match=r"nowhere.shp: "):
        read_rivers(tmp_path / "nowhere.shp")


def test_a_name_in_a_map_that_is_no_text_is_refused(tmp_path):
    path = written(tmp_path, FORK)
    path.write_bytes(path.read_bytes().replace(b'"name": "river"', b'"name": "\x80"', 1))
    with pytest.raises(ReadError, match="cannot be opened as a map of lines"):
        read_rivers(path)


@pytest.mark.parametrize("far", [1e13, 1e300, -1e200])
def test_a_vertex_that_lies_on_no_map_is_refused(tmp_path, far):
    with pytest.raises(ReadError, match="line 1 has a vertex that is not finite, or farther than 1e"):
        read_rivers(written(tmp_path, [[(0.0, 0.0), (far, 5.0)]]), tolerance=1.0)
