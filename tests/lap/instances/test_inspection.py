"""FileInspection: counts, and labels that are checked without a solver."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate
from kdgat.lap.instances.inspection import check_records, inspect_store
from kdgat.lap.instances.records import label
from kdgat.lap.instances.store import write_store
from tests.lap.schema1_files import write_schema1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    instances = [generate(family, n, seed) for family in DISTRIBUTIONS for n in (5, 8) for seed in range(2)]
    write_store(tmp_path / "a.h5", [*instances, instances[0]], "dense")
    return tmp_path / "a.h5"


def test_records_are_counted_by_family_and_size(path: Path) -> None:
    inspection = inspect_store(path)
    assert (inspection.num_records, inspection.storage, inspection.schema_version) == (41, "dense", 2)
    assert inspection.counts["metric", 8] == 2
    assert inspection.counts["uniform", 5] == 3
    assert inspection.num_duplicates == 1
    assert inspection.num_bytes == path.stat().st_size


@pytest.mark.parametrize(("sample", "count"), [(None, 41), (7, 7), (100, 41), (0, 0)])
def test_right_labels_are_proved(path: Path, sample: int | None, count: int) -> None:
    inspection = inspect_store(path)
    check_records(inspection, sample)
    assert (inspection.num_checked, inspection.problems) == (count, [])


def test_each_wrong_record_is_named(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["cost"][3] += 0.01
        file["cols"][5] = np.roll(file["cols"][5], 1)
        file["v"][7] = file["v"][7] + 0.01
        file["C"][9] = file["C"][9] + 0.01
    inspection = inspect_store(path)
    check_records(inspection)
    assert [text.split("(")[0].split(":")[0].strip() for text in inspection.problems] == [
        "record 3",
        "record 5",
        "record 7",
        "record 9",
    ]


def test_files_of_the_first_schema_can_be_inspected(tmp_path: Path) -> None:
    records = [label(generate("metric", 6, seed)) for seed in range(3)]
    old = write_schema1(tmp_path / "old.h5", records)
    with h5py.File(old, "r+") as file:
        file["cost"][1] += 0.01
    inspection = inspect_store(old)
    assert (inspection.schema_version, inspection.num_records, inspection.num_duplicates) == (1, 3, None)
    check_records(inspection)
    assert len(inspection.problems) == 1
    assert inspection.problems[0].startswith("record 1 (metric, n=6)")
