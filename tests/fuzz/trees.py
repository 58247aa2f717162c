"""Trees in every format, and tables of labels."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import shapely
from hypothesis import strategies as st
from pyogrio import raw
from skimage.io import imsave

from kdgat.trees.reading.collection import holds_trees, read_folder
from kdgat.trees.reading.settings import ReadSettings
from tests.fuzz.inputs import damaged
from tests.fuzz.target import Target, read_or_refuse

CROSS = b"# a cross\n1 2 0 0 0 1 -1\n2 2 1 0 0 1 1\n3 2 2 1 0 1 2\n4 2 2 -1 0 1 2\n"
LABELS = b"file,label,length,split,group\na.swc,axon,12.5,train,cat\nb.swc,dendrite,7,test,dog\n"
LINES = (
    [(-30.0, 40.0), (-20.0, 10.0), (0.0, 0.0)],
    [(30.0, 40.0), (0.0, 0.0)],
    [(0.0, 0.0), (5.0, -20.0), (0.0, -50.0)],
)
SETTINGS = (ReadSettings(), ReadSettings(tolerance=1.0, spanning_trees=2))


@cache
def samples() -> dict[str, list[bytes]]:
    """Return whole files by suffix; of a shapefile the parts by their suffixes."""
    found: dict[str, list[bytes]] = {".swc": [CROSS, CROSS.replace(b" ", b"\t"), CROSS.decode().encode("utf-16")]}
    mask = np.zeros((24, 20), np.uint8)
    mask[2:12, 9:12] = 255
    for step in range(9):
        mask[12 + step, 10 + step // 2 : 12 + step // 2] = mask[12 + step, 9 - step // 2 : 11 - step // 2] = 255
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes = shapely.to_wkb(np.array([shapely.LineString(line) for line in LINES]))
        for suffix in (".geojson", ".shp"):
            raw.write(folder / f"a{suffix}", shapes, [], [], geometry_type="LineString", crs="EPSG:32632")
        for suffix in (".png", ".tif"):
            imsave(folder / f"a{suffix}", mask, check_contrast=False)
        np.save(folder / "a.npy", mask)
        for path in sorted(folder.iterdir()):
            found[path.suffix] = [path.read_bytes()]
    return found


def _check(suffix: str, folder: Path, drawn: tuple[bytes, int]) -> None:
    data, settings = drawn
    (folder / f"a{suffix}").write_bytes(data)
    read_or_refuse(folder, lambda: _read_all(folder, SETTINGS[settings]))


def _read_all(folder: Path, settings: ReadSettings) -> None:
    assert isinstance(holds_trees(folder), bool)
    for source in read_folder(folder).sources:
        source.read(settings)


def _of_suffix(suffix: str, share: int) -> Target:
    return Target(
        f"tree{suffix.replace('.', '-')}",
        share,
        lambda: st.tuples(damaged(samples()[suffix]), st.integers(0, 1)),
        lambda folder, drawn: _check(suffix, folder, drawn),
    )


def _shapefiles() -> st.SearchStrategy[tuple[str, bytes, int]]:
    part = st.sampled_from((".shp", ".shx", ".prj"))
    return part.flatmap(lambda one: st.tuples(st.just(one), damaged(samples()[one]), st.integers(0, 1)))


def _check_shapefile(folder: Path, drawn: tuple[str, bytes, int]) -> None:
    suffix, data, settings = drawn
    for part in (".shp", ".shx", ".prj"):
        (folder / f"a{part}").write_bytes(data if part == suffix else samples()[part][0])
    read_or_refuse(folder, lambda: _read_all(folder, SETTINGS[settings]))


def _check_labels(folder: Path, data: bytes) -> None:
    for name in ("a.swc", "b.swc"):
        (folder / name).write_bytes(CROSS)
    (folder / "labels.csv").write_bytes(data)
    read_or_refuse(folder, lambda: read_folder(folder))


TARGETS = (
    _of_suffix(".swc", 80),
    _of_suffix(".geojson", 40),
    _of_suffix(".png", 25),
    _of_suffix(".tif", 25),
    _of_suffix(".npy", 25),
    Target("tree-shapefile", 25, _shapefiles, _check_shapefile),
    Target("tree-labels", 40, lambda: damaged([LABELS, LABELS.replace(b",", b";")]), _check_labels),
)
