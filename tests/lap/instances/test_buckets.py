"""Splits by size class and family: fixed by the seed, whole, and without a problem in two of them."""

import random
from itertools import chain
from pathlib import Path

import h5py
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdgat.base import UserError
from kdgat.lap.instances.buckets import (
    SPLITS,
    assign_splits,
    bucket_path,
    existing_buckets,
    split_counts,
    write_buckets,
)
from kdgat.lap.instances.distributions import Instance, generate
from kdgat.lap.instances.files import size_class
from kdgat.lap.instances.records import Record, label
from kdgat.lap.instances.store import LapStore, Storage, write_store

CLASSES = {512: "small", 1024: "small", 1025: "mid_1536", 1536: "mid_1536", 2048: "mid_2048", 3072: "mid_3072"}


def test_sizes_have_their_classes() -> None:
    assert {n: size_class(n) for n in CLASSES} == CLASSES
    assert {size_class(n) for n in (3073, 4096, 16384)} == {"large_4096"}
    assert size_class(1) == "small"


@given(st.integers(0, 5000))
def test_shares_add_up_and_are_within_one_of_70_15_15(count: int) -> None:
    counts = split_counts(count)
    assert sum(counts) == count
    assert min(counts) >= 0
    if count:
        assert counts[0] >= 1
    if count >= 3:
        assert min(counts) >= 1
    if count >= 4:
        assert all(abs(found - count * share) <= 1.0 for found, share in zip(counts, (0.7, 0.15, 0.15), strict=True))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    made = [label(generate(family, n, seed)) for family in ("uniform", "metric") for n in (4, 6) for seed in range(20)]
    return [*made, label(generate("tie", 5, 0))]


def _buckets(folder: Path) -> dict[str, list[str]]:
    """Return the contents of each split."""
    return {split: LapStore.open(bucket_path(folder, "small", split)).contents() for split in SPLITS}


@pytest.mark.parametrize("storage", ["seeded", "dense"])
def test_the_split_depends_on_the_seed_alone_and_not_on_the_order_of_records(
    tmp_path: Path, records: list[Record], storage: Storage
) -> None:
    found = []
    for place, seed in enumerate((42, 42, 7)):
        shuffled = list(records)
        random.Random(place).shuffle(shuffled)
        write_store(tmp_path / f"{place}.h5", shuffled, storage)
        summary = write_buckets(tmp_path / f"{place}.h5", tmp_path / str(place), seed)
        assert summary.counts == {("small", "train"): 57, ("small", "val"): 12, ("small", "test"): 12}
        found.append(_buckets(tmp_path / str(place)))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_every_record_is_in_one_split_and_each_family_and_size_is_shared_out(
    tmp_path: Path, records: list[Record]
) -> None:
    write_store(tmp_path / "a.h5", records)
    write_buckets(tmp_path / "a.h5", tmp_path / "out", 42)
    splits = _buckets(tmp_path / "out")
    assert sorted(chain.from_iterable(splits.values())) == sorted(record.content for record in records)
    for split, count in zip(SPLITS, (14, 3, 3), strict=True):
        store = LapStore.open(bucket_path(tmp_path / "out", "small", split))
        assert store.storage == "seeded"
        for family in ("uniform", "metric"):
            assert [len(store.indices(size=n, family=family)) for n in (4, 6)] == [count, count]
        assert len(store.indices(family="tie")) == (1 if split == "train" else 0)
        store.record(0)


def test_equal_contents_under_two_names_are_in_one_split_only(tmp_path: Path) -> None:
    made = [generate("uniform", 5, seed) for seed in range(30)]
    twins = [Instance("copy", 0, instance.cost, None) for instance in made]
    for name, instances in (("a", made + twins), ("b", twins[::-1] + made[::-1])):
        write_store(tmp_path / f"{name}.h5", instances, "dense")
        summary = write_buckets(tmp_path / f"{name}.h5", tmp_path / name, 1)
        assert summary.num_duplicates == 30
    splits = _buckets(tmp_path / "a")
    assert len(set(chain.from_iterable(splits.values()))) == sum(map(len, splits.values())) == 30
    assert splits == _buckets(tmp_path / "b")


def test_sizes_go_to_files_of_their_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdgat.lap.instances.files.SIZE_CLASSES", (("small", 4), ("mid_1536", 6)))
    write_store(tmp_path / "a.h5", [generate("uniform", n, seed) for n in (3, 4, 5, 9) for seed in range(10)])
    chosen, _ = assign_splits(LapStore.open(tmp_path / "a.h5"), 0)
    assert {key: len(indices) for key, indices in chosen.items() if key[1] == "train"} == {
        ("small", "train"): 14,
        ("mid_1536", "train"): 7,
        ("large_4096", "train"): 7,
    }
    write_buckets(tmp_path / "a.h5", tmp_path / "out", 0)
    assert len(existing_buckets(tmp_path / "out")) == 9
    assert set(LapStore.open(bucket_path(tmp_path / "out", "mid_1536", "test")).sizes()) == {5}


def test_a_new_split_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    write_store(tmp_path / "a.h5", [generate("uniform", n, seed) for n in (5, 1100) for seed in range(1)])
    write_store(tmp_path / "b.h5", [generate("uniform", 5, seed) for seed in range(5)])
    write_buckets(tmp_path / "a.h5", tmp_path / "out", 0)
    assert bucket_path(tmp_path / "out", "mid_1536", "train").exists()
    write_buckets(tmp_path / "b.h5", tmp_path / "out", 0)
    assert existing_buckets(tmp_path / "out") == [bucket_path(tmp_path / "out", "small", split) for split in SPLITS]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.h5", "b.h5", "out"]


def test_a_store_that_is_damaged_leaves_the_old_split(tmp_path: Path) -> None:
    write_store(tmp_path / "a.h5", [generate("uniform", 5, seed) for seed in range(8)], "dense")
    write_buckets(tmp_path / "a.h5", tmp_path / "out", 0)
    before = _buckets(tmp_path / "out")
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["C"][3] = file["C"][3] + 1.0
    with pytest.raises(UserError, match=r"record 3.*edited"):
        write_buckets(tmp_path / "a.h5", tmp_path / "out", 1)
    assert _buckets(tmp_path / "out") == before
    write_store(tmp_path / "empty.h5", [])
    with pytest.raises(UserError, match="holds no records"):
        write_buckets(tmp_path / "empty.h5", tmp_path / "out", 1)
