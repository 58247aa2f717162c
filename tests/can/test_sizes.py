"""How many windows train, counted or known, and what jobs ask for with so many before any attempt has shown it."""

import shutil
from pathlib import Path

import pytest

from kdgat.can.config import CanConfig
from kdgat.can.sizes import assume, data_size, data_sizes, rule_for
from kdgat.canbus.simulation import write_dataset

HOUR_S = 3600


def config(root: Path, dataset: str = "synthetic") -> CanConfig:
    return CanConfig.from_preset("full", {"data": {"dataset": dataset, "data_root": str(root)}})


@pytest.mark.parametrize(
    ("stage", "windows", "walltime_s", "memory_gib"),
    [
        ("autoencoder", 9_364, 8 * HOUR_S, 64),
        ("autoencoder", 203_496, 12 * HOUR_S, 96),
        ("curriculum", 203_496, 14.4 * HOUR_S, 106),
        ("curriculum", 45_000, 9.6 * HOUR_S, 70),
    ],
)
def test_the_rules_are_those_of_standard_and_complex_datasets(stage, windows, walltime_s, memory_gib) -> None:
    found = assume(stage, windows)
    walltime, memory = found["walltime"], found["memory"]
    assert (walltime.value, memory.value) == (walltime_s, memory_gib * 1024)
    assert f"{windows:,} windows" in walltime.source
    assert walltime.coverage is None


def test_nothing_is_assumed_of_small_or_unknown_data_of_what_trains_no_network_and_of_a_try() -> None:
    nothing = [assume("normal", 4_999), assume("normal", None), assume("prepare", 203_496), assume("fusion", 203_496)]
    nothing.append(assume("normal", 203_496, "quick"))
    assert not any(nothing)


def test_windows_are_counted_where_the_recordings_are(tmp_path: Path) -> None:
    write_dataset(tmp_path, "synthetic", "tiny")
    found = data_size(config(tmp_path))
    assert found.graphs == 252
    assert found.source.startswith("counted in 8 recordings")
    assert found.complexity == "small"


def test_recordings_that_have_changed_are_counted_again(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "synthetic", "tiny")
    before = data_size(config(tmp_path)).graphs
    next(iter(sorted(folder.rglob("*train_*")))).unlink()
    assert data_size(config(tmp_path)).graphs < before


def test_without_recordings_the_number_is_that_of_the_catalog(tmp_path: Path) -> None:
    found = data_size(config(tmp_path, "set_02"))
    assert (found.graphs, found.complexity) == (203_496, "complex")
    assert found.source.startswith("not counted, as the catalog has them")
    assert rule_for(found.graphs).memory_gib == 96
    unknown = data_size(config(tmp_path, "mine"))
    assert (unknown.graphs, unknown.complexity) == (None, "")


def test_all_datasets_of_the_catalog_and_of_the_data_root_are_compared(tmp_path: Path) -> None:
    write_dataset(tmp_path, "mine", "tiny")
    shutil.copytree(tmp_path / "mine", tmp_path / ".other-x7a")  # left by who was killed while it wrote a dataset
    found = {size.dataset: size.graphs for size, _ in data_sizes(config(tmp_path, "set_01"))}
    assert found["mine"] == 252
    assert ".other-x7a" not in found
    assert found["set_02"] == 203_496
    assert {"hcrl_ch", "hcrl_sa", "set_01", "set_03", "set_04"} <= set(found)
    assert "synthetic" not in found
