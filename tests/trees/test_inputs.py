"""What identifies the input of a run."""

import numpy as np
import pytest
import shapely
from pyogrio import raw

from kdgat.base import UserError
from kdgat.trees.config import TreesConfig
from kdgat.trees.family import FAMILY
from kdgat.trees.inputs import check_files
from tests.trees.small_runs import small_config, write_folder


def write_rivers(folder, suffix):
    for number in range(3):
        shapes = shapely.to_wkb(np.array([shapely.LineString([(0.0, 0.0), (5.0, 2.0 + number)])]))
        raw.write(folder / f"river-{number}{suffix}", shapes, [], [], geometry_type="LineString", crs="EPSG:32632")


def inputs_of(folder):
    run = FAMILY.plan(small_config(f"data.data_root={folder}", "label_fractions=[]"))
    (prepare,) = [planned for planned in run.plan if planned.stage == "prepare"]
    return {name: one.sha256 for name, one in run.external_inputs(prepare).items()}


def test_what_lies_beside_a_shapefile_and_is_read_with_it_is_an_input_too(tmp_path) -> None:
    write_rivers(tmp_path, ".shp")
    (tmp_path / "river-1.prj").rename(tmp_path / "river-1.PRJ")
    before = inputs_of(tmp_path)
    assert sorted(before)[:4] == ["file-000000", "file-000000.prj", "file-000000.shx", "file-000001"]
    assert len(before) == 9
    (tmp_path / "river-0.prj").write_text("another projection")
    changed = {name for name, digest in inputs_of(tmp_path).items() if digest != before[name]}
    assert changed == {"file-000000.prj"}


def test_of_other_files_the_file_is_the_only_input(tmp_path) -> None:
    write_rivers(tmp_path, ".geojson")
    (tmp_path / "river-0.prj").write_text("of nothing")
    assert list(inputs_of(tmp_path)) == ["file-000000", "file-000001", "file-000002"]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"label": ["basket"] * 6}, "all 6 labelled files are of the class 'basket': give two classes"),
        ({"label": ["a", "b"] * 3, "split": ["train", "validation"] * 3}, "test: no file is left for this split"),
    ],
)
def test_labels_that_nothing_can_be_learned_from_are_refused_before_anything_starts(tmp_path, labels, words) -> None:
    folder = write_folder(tmp_path, 6, labels)
    with pytest.raises(UserError, match=words):
        FAMILY.plan(small_config(f"data.data_root={folder}"))


def test_files_that_are_empty_or_no_trees_are_named_before_anything_starts(tmp_path):
    (tmp_path / "a.swc").write_text("1 2 0 0 0 1 -1\n2 2 1 0 0 1 1\n")
    config = TreesConfig.from_preset("quick", {"data": {"data_root": str(tmp_path)}})
    check_files(config)
    (tmp_path / "b.png").touch()
    (tmp_path / "c.swc").write_text("no tree\n")
    missing = TreesConfig.from_preset("quick", {"data": {"data_root": str(tmp_path / "nope")}})
    with pytest.raises(UserError, match=r"^--data-root .*nope: there is no such file or folder"):
        check_files(missing)
    with pytest.raises(UserError, match=r"(?s)2 of 3 files are unusable.*b.png: is empty.*c.swc: "):
        check_files(config)
