"""Merging files of assignment problems: each problem once, both storages, both schemas."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from kdgat.base import UserError
from kdgat.lap.instances.distributions import Instance, generate
from kdgat.lap.instances.inspection import check_record
from kdgat.lap.instances.merging import merge_stores
from kdgat.lap.instances.records import label
from kdgat.lap.instances.schema1 import Schema1Store, open_store
from kdgat.lap.instances.store import LapStore, Storage, write_store
from tests.lap.schema1_files import BIG, write_schema1


def _store(path: Path, seeds: range, storage: Storage, families: tuple[str, ...] = ("metric", "sparse")) -> Path:
    write_store(path, [generate(family, 9, seed) for seed in seeds for family in families], storage)
    return path


def test_every_content_is_kept_once_whatever_file_and_storage_it_comes_from(tmp_path: Path) -> None:
    first = _store(tmp_path / "a.h5", range(0, 4), "seeded")
    second = _store(tmp_path / "b.h5", range(2, 6), "dense")
    third = _store(tmp_path / "c.h5", range(5, 7), "seeded")
    summary = merge_stores(tmp_path / "all.h5", [first, second, third])
    assert (summary.num_records, summary.storage) == (14, "seeded")
    assert summary.duplicates == {first: 0, second: 4, third: 2}
    store = LapStore.open(tmp_path / "all.h5")
    assert len(set(store.contents())) == len(store) == 14
    assert sorted(set(store.seeds())) == list(range(7))
    for index in range(14):
        check_record(store.record(index), "record")
    again = merge_stores(tmp_path / "again.h5", [tmp_path / "all.h5", tmp_path / "all.h5"])
    assert (again.num_records, again.duplicates[tmp_path / "all.h5"]) == (14, 14)


def test_seeded_files_stay_seeded_and_dense_ones_become_seeded_only_if_their_seeds_bring_them_back(
    tmp_path: Path,
) -> None:
    seeded = _store(tmp_path / "a.h5", range(2), "seeded")
    dense = _store(tmp_path / "b.h5", range(1, 3), "dense")
    assert merge_stores(tmp_path / "c.h5", [seeded, seeded]).storage == "seeded"
    merge_stores(tmp_path / "d.h5", [dense, seeded], storage="seeded")
    assert LapStore.open(tmp_path / "d.h5").storage == "seeded"
    assert len(LapStore.open(tmp_path / "d.h5")) == 6
    for index in range(6):
        check_record(LapStore.open(tmp_path / "d.h5").record(index), "record")
    own = generate("metric", 9, 1)
    changed = Instance("metric", 1, own.cost * 2, None, parameters=own.parameters)
    write_store(tmp_path / "e.h5", [changed], "dense")
    with pytest.raises(UserError, match=r"e\.h5: record 0: cannot be kept as a seed.*--storage dense"):
        merge_stores(tmp_path / "f.h5", [tmp_path / "e.h5"], storage="seeded")
    assert not (tmp_path / "f.h5").exists()


def test_the_storage_is_dense_where_all_inputs_are_or_a_record_has_no_seed(tmp_path: Path) -> None:
    seeded = _store(tmp_path / "a.h5", range(2), "seeded")
    dense = _store(tmp_path / "b.h5", range(2), "dense")
    write_store(tmp_path / "own.h5", [Instance("own", 0, np.eye(3), None)], "dense")
    for inputs, storage in (
        ([seeded], "seeded"),
        ([seeded, dense], "seeded"),
        ([dense], "dense"),
        ([seeded, tmp_path / "own.h5"], "dense"),
    ):
        assert merge_stores(tmp_path / "out.h5", inputs).storage == storage
        assert LapStore.open(tmp_path / "out.h5").storage == storage


def test_a_file_may_be_merged_into_itself(tmp_path: Path) -> None:
    path = _store(tmp_path / "a.h5", range(2), "dense")
    other = _store(tmp_path / "b.h5", range(1, 3), "dense")
    merge_stores(path, [path, other])
    assert len(LapStore.open(path)) == 6


def test_files_of_the_first_schema_become_records_with_masks_and_labels_that_are_proved(tmp_path: Path) -> None:
    records = [label(generate(family, 12, seed)) for seed in range(3) for family in ("metric", "sparse", "clustered")]
    old = write_schema1(tmp_path / "old.h5", records)
    summary = merge_stores(tmp_path / "new.h5", [old], forbidden_from=BIG)
    assert (summary.num_records, summary.num_relabelled, summary.storage) == (9, 0, "dense")
    store = LapStore.open(tmp_path / "new.h5")
    assert store.contents() == [record.content for record in records]
    for index, record in enumerate(records):
        found = store.record(index)
        assert np.array_equal(found.u, record.u)
        assert (found.family, found.seed, found.instance.parameters) == (record.family, 0, None)
        assert found.instance.tag == "old"
        assert found.instance.noise_std == pytest.approx(record.instance.noise_std)
    generated = tmp_path / "generated.h5"
    write_store(generated, [record.instance for record in records[:2]], "seeded")
    assert merge_stores(tmp_path / "both.h5", [old, generated], forbidden_from=BIG).duplicates[generated] == 2


def test_big_numbers_are_noticed_and_left_alone_unless_said_otherwise(tmp_path: Path) -> None:
    old = write_schema1(tmp_path / "old.h5", [label(generate(family, 12, 0)) for family in ("sparse", "metric")])
    summary = merge_stores(tmp_path / "new.h5", [old])
    assert (summary.num_big_numbers, summary.big_number) == (1, BIG)
    assert LapStore.open(tmp_path / "new.h5").record(0).mask is None


@pytest.mark.parametrize("leave_out", [("u",), ("v", "rows"), ("cols", "cost", "n", "family", "noise_std", "tag")])
def test_labels_that_the_first_schema_lacks_are_made(tmp_path: Path, leave_out: tuple[str, ...]) -> None:
    records = [label(generate("metric", n, 0)) for n in (4, 7)]
    old = write_schema1(tmp_path / "old.h5", records, leave_out)
    summary = merge_stores(tmp_path / "new.h5", [old])
    assert summary.num_relabelled == 2
    store = LapStore.open(tmp_path / "new.h5")
    assert [store.record(index).optimum for index in range(2)] == pytest.approx([r.optimum for r in records])
    assert store.sizes().tolist() == [4, 7]


@pytest.mark.parametrize("column", ["u", "cost", "cols"])
def test_labels_that_prove_nothing_are_made_again(tmp_path: Path, column: str) -> None:
    records = [label(generate("metric", 8, seed)) for seed in range(2)]
    old = write_schema1(tmp_path / "old.h5", records)
    with h5py.File(old, "r+") as file:
        if column == "cost":
            file[column][1] += 0.1
        else:
            file[column][1] = np.roll(file[column][1], 1)
    assert merge_stores(tmp_path / "new.h5", [old]).num_relabelled == 1
    check_record(LapStore.open(tmp_path / "new.h5").record(1), "record")


def test_wrong_inputs_are_named_before_anything_is_written(tmp_path: Path) -> None:
    good = _store(tmp_path / "a.h5", range(2), "seeded")
    (tmp_path / "b.h5").write_bytes(good.read_bytes()[:2000])
    out = tmp_path / "out.h5"
    with pytest.raises(UserError, match=r"b\.h5: damaged or truncated"):
        merge_stores(out, [good, tmp_path / "b.h5"])
    with pytest.raises(UserError, match=r"none\.h5: no such file"):
        merge_stores(out, [good, tmp_path / "none.h5"])
    with pytest.raises(UserError, match="no files"):
        merge_stores(out, [])
    old = write_schema1(tmp_path / "old.h5", [label(generate("metric", 5, 0))])
    with pytest.raises(UserError, match=r"old\.h5: .*--storage dense"):
        merge_stores(out, [good, old], storage="seeded")
    for costs, words in ((np.zeros(24), "C has 24 entries, n is 5"), (np.full(25, np.nan), "C holds nan")):
        with h5py.File(old, "r+") as file:
            file["C"][0] = costs
        with pytest.raises(UserError, match=rf"old\.h5: record 0: {words}"):
            merge_stores(out, [old])
    with h5py.File(old, "r+") as file:
        file["u"].resize((0,))
    with pytest.raises(UserError, match=r"old\.h5: column u has 0 records, C has 1"):
        merge_stores(out, [old])
    assert not out.exists()


def test_either_schema_is_recognised(tmp_path: Path) -> None:
    old = write_schema1(tmp_path / "old.h5", [label(generate("metric", 5, 0))])
    new = _store(tmp_path / "new.h5", range(1), "dense")
    assert isinstance(open_store(old), Schema1Store)
    assert isinstance(open_store(new), LapStore)
    with pytest.raises(UserError, match="rewrite it with kdgat lap merge"):
        LapStore.open(old)
