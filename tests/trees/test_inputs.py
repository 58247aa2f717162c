"""What identifies the input of a run."""

import numpy as np
import shapely
from pyogrio import raw

from kdgat.trees.family import FAMILY
from tests.trees.small_runs import small_config


def inputs_of(folder):
    run = FAMILY.plan(small_config(f"data.data_root={folder}", "label_fractions=[]"))
    (prepare,) = [planned for planned in run.plan if planned.stage == "prepare"]
    return {name: one.sha256 for name, one in run.external_inputs(prepare).items()}


def test_what_lies_beside_a_shapefile_and_is_read_with_it_is_an_input_too(tmp_path) -> None:
    shapes = shapely.to_wkb(np.array([shapely.LineString([(0.0, 0.0), (5.0, 2.0)])]))
    raw.write(tmp_path / "river.shp", shapes, [], [], geometry_type="LineString", crs="EPSG:32632")
    before = inputs_of(tmp_path)
    assert list(before) == ["file-000000", "file-000000.shx", "file-000000.prj"]
    (tmp_path / "river.prj").write_text("another projection")
    changed = {name for name, digest in inputs_of(tmp_path).items() if digest != before[name]}
    assert changed == {"file-000000.prj"}


def test_of_other_files_the_file_is_the_only_input(tmp_path) -> None:
    shapes = shapely.to_wkb(np.array([shapely.LineString([(0.0, 0.0), (5.0, 2.0)])]))
    raw.write(tmp_path / "river.geojson", shapes, [], [], geometry_type="LineString", crs="EPSG:32632")
    (tmp_path / "river.prj").write_text("of nothing")
    assert list(inputs_of(tmp_path)) == ["file-000000"]
