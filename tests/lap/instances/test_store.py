"""The store of assignment problems: what goes in comes out, and what is wrong with a file is said."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from kdgat.base import UserError, memory
from kdgat.base.files import temporary_path
from kdgat.lap.instances import store as store_module
from kdgat.lap.instances.distributions import DISTRIBUTIONS, Instance, generate
from kdgat.lap.instances.records import content_hash, join_costs, label, split_costs
from kdgat.lap.instances.store import STORAGES, LapStore, Storage, write_store

SIZES = (1, 2, 9, 20)


def instances() -> Iterator[Instance]:
    return (generate(family, n, 3) for family in DISTRIBUTIONS for n in SIZES)


@pytest.fixture(scope="module", params=STORAGES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LapStore:
    path = tmp_path_factory.mktemp("store") / f"{request.param}.h5"
    assert write_store(path, instances(), request.param) == len(DISTRIBUTIONS) * len(SIZES)
    return LapStore.open(path)


def test_instances_come_back_as_they_were_with_the_optimum_and_duals_that_prove_it(store: LapStore) -> None:
    for index, instance in enumerate(instances()):
        record = store.record(index)
        assert (record.family, record.n, record.seed) == (instance.family, instance.n, 3)
        assert record.instance.parameters == instance.parameters
        assert record.instance.noise_std == instance.noise_std
        assert np.array_equal(record.cost, instance.cost)
        masked = instance.cost
        if instance.mask is None or not instance.mask.any():
            assert record.mask is None or not record.mask.any()
        else:
            assert np.array_equal(record.mask, instance.mask)
            masked = np.where(instance.mask, np.inf, instance.cost)
        rows, columns = linear_sum_assignment(masked)
        scale = max(1.0, float(np.abs(instance.cost).max()) * instance.n)
        assert abs(masked[rows, columns].sum() - record.optimum) <= 1e-9 * scale
        assert abs(masked[record.rows, record.columns].sum() - record.optimum) <= 1e-9 * scale
        assert abs(record.u.sum() + record.v.sum() - record.optimum) <= 1e-9 * scale
        assert (masked - record.u[:, None] - record.v).min() >= -1e-9 * scale


def test_records_are_found_by_size_and_family(store: LapStore) -> None:
    assert len(store) == len(store.sizes()) == len(store.families()) == 40
    assert set(store.sizes()[store.indices(size=9)]) == {9}
    assert [store.families()[index] for index in store.indices(family="metric")] == ["metric"] * 4
    (index,) = store.indices(size=20, family="tie")
    assert store.record(index).family == "tie"
    assert len(store.indices(family="nothing")) == 0
    assert store.record(-1).content == store.contents()[-1]


def test_every_key_has_an_entry_per_record(store: LapStore) -> None:
    keys = {"n", "u", "v", "rows", "cols", "cost", "family", "noise_std", "tag", "seed", "parameters", "content"}
    with h5py.File(store.path) as file:
        assert set(file.keys()) == keys | ({"C"} if store.storage == "dense" else set())
        assert {len(file[key]) for key in file} == {40}
        assert file.attrs["records"] == 40


@pytest.mark.processes
def test_the_command_of_the_seed_document_works(store: LapStore) -> None:
    script = f"import h5py; f=h5py.File('{store.path}'); print(f.keys(), len(f['n']))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "'cols'" in answer
    assert answer.split()[-1] == "40"


def test_a_store_can_be_sent_to_another_process(store: LapStore) -> None:
    store.cost(0)
    copy = pickle.loads(pickle.dumps(store))
    assert np.array_equal(copy.cost(5)[0], store.cost(5)[0])
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(store.cost(7)[0], copy.cost(7)[0]) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_seeded_and_dense_records_have_the_same_content(tmp_path: Path) -> None:
    contents = []
    for storage in STORAGES:
        write_store(tmp_path / f"{storage}.h5", instances(), storage)
        contents.append(LapStore.open(tmp_path / f"{storage}.h5").contents())
    assert contents[0] == contents[1]
    assert len(set(contents[0])) > 30  # problems of one row are the same in several families


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_costs_and_mask_survive_being_joined(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    cost = np.array(data.draw(st.lists(st.floats(-1e9, 1e9), min_size=n * n, max_size=n * n))).reshape(n, n)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))).reshape(n, n)
    back, back_mask = split_costs(join_costs(cost, mask), n)
    assert np.array_equal(back[~mask], cost[~mask])
    assert np.array_equal(np.zeros((n, n), bool) if back_mask is None else back_mask, mask)
    assert content_hash(back, back_mask) == content_hash(cost, mask)
    if not mask.all():
        changed = cost.copy()
        changed[tuple(np.argwhere(~mask)[0])] += 1.0
        assert content_hash(changed, mask) != content_hash(cost, mask)


def test_content_ignores_what_stands_where_a_pair_is_forbidden_and_the_sign_of_zero() -> None:
    cost, mask = np.array([[0.0, 5.0], [1.0, 2.0]]), np.array([[False, True], [False, False]])
    assert content_hash(cost, mask) == content_hash(np.array([[-0.0, 7.0], [1.0, 2.0]]), mask)
    assert content_hash(cost, mask) != content_hash(cost, None)
    assert content_hash(cost, None) == content_hash(cost, np.zeros((2, 2), bool))


def test_labelled_records_are_written_without_being_solved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = label(generate("metric", 12, 0))
    monkeypatch.setattr("kdgat.lap.instances.store.label", lambda _: pytest.fail("solved again"))
    write_store(tmp_path / "a.h5", [record], "dense")
    stored = LapStore.open(tmp_path / "a.h5").stored(0)
    write_store(tmp_path / "b.h5", [stored], "dense")
    assert LapStore.open(tmp_path / "b.h5").record(0).optimum == record.optimum


def test_matrices_of_ones_own_need_dense_storage(tmp_path: Path) -> None:
    own = Instance("mine", 0, np.array([[1.0, 2.0], [0.5, 3.0]]), None)
    with pytest.raises(UserError, match=r"record 0 \(mine, n=2\).*dense"):
        write_store(tmp_path / "a.h5", [own], "seeded")
    write_store(tmp_path / "a.h5", [own], "dense")
    record = LapStore.open(tmp_path / "a.h5").record(0)
    assert (record.family, record.instance.parameters, record.optimum) == ("mine", None, 2.5)


def test_an_empty_store_can_be_written_and_read(tmp_path: Path) -> None:
    write_store(tmp_path / "a.h5", [])
    store = LapStore.open(tmp_path / "a.h5")
    assert len(store) == 0
    with pytest.raises(UserError, match="there is no record 0; the file holds none"):
        store.record(0)


@pytest.mark.parametrize("old", [None, b"old content"])
def test_a_failing_writer_leaves_what_was_there(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "a.h5"
    if old:
        path.write_bytes(old)

    def broken() -> Iterator[Instance]:
        yield generate("uniform", 5, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(path, broken())
    assert (path.read_bytes() if path.exists() else None) == old
    assert [entry.name for entry in tmp_path.iterdir()] == (["a.h5"] if old else [])


@pytest.mark.processes
def test_a_killed_writer_leaves_no_half_file_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    script = (
        "import sys\nimport numpy as np\nfrom kdgat.lap.instances.distributions import generate\n"
        "from kdgat.lap.instances.records import Record\nfrom kdgat.lap.instances.store import write_store\n"
        "zeros, order = np.zeros(40), np.arange(40)\n"
        "def endless():\n    for seed in range(10**9):\n"
        "        yield Record(generate('uniform', 40, seed), zeros, zeros, order, order, 0.0, 32 * '0')\n"
        "write_store(sys.argv[1], endless(), 'dense')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)])
    deadline = time.monotonic() + 60.0
    while not any(entry.stat().st_size > 100_000 for entry in tmp_path.iterdir()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not path.exists()
    assert len(list(tmp_path.iterdir())) == 1
    other = temporary_path(tmp_path / "b.h5")
    other.touch()  # of a process that lives, and of another file
    write_store(path, [generate("uniform", 3, 0)])
    assert sorted(tmp_path.iterdir()) == sorted([path, other])


@pytest.mark.parametrize("storage", STORAGES)
def test_a_record_that_memory_has_no_room_for_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: Storage
) -> None:
    path = tmp_path / "a.h5"
    write_store(path, [generate("uniform", n, 0) for n in (3, 60)], storage)
    store = LapStore.open(path)
    monkeypatch.setattr(store_module, "_BUFFER_BYTES", 0)
    monkeypatch.setattr(memory, "available_memory", lambda: 10_000)
    assert store.record(0).n == 3
    with pytest.raises(UserError, match=r"a\.h5: record 1 holds .*, and this machine has .* left"):
        store.record(1)


def test_columns_that_were_never_written_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_store(path, [generate("uniform", 3, 0)])
    with h5py.File(path, "r+") as file:
        for name in file:
            file[name].resize((1 << 40,))
        file.attrs["records"] = 1 << 40
    with pytest.raises(UserError, match=r"holds .*, unpacked, and this machine has .* left"):
        LapStore.open(path)


@pytest.mark.processes
def test_a_full_disk_is_one_line_and_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_store(path, [generate("uniform", 3, 0)])
    before = path.read_bytes()
    script = (
        "import sys, resource\nimport numpy as np\nfrom kdgat.lap.instances.distributions import generate\n"
        "from kdgat.lap.instances.records import Record\nfrom kdgat.lap.instances.store import write_store\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))\n"
        "zeros, order = np.zeros(200), np.arange(200)\n"
        "many = (Record(generate('uniform', 200, k), zeros, zeros, order, order, 0.0, 32 * '0') for k in range(99))\n"
        "try:\n    write_store(sys.argv[1], many, 'dense')\n"
        "except OSError as error:\n    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert answer.stdout == f"[Errno 27] File too large: '{path}'\n"
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.h5"]


def _small(path: Path, storage: Storage = "dense") -> Path:
    write_store(path, [generate("sparse", 8, seed) for seed in range(3)], storage)
    return path


def test_costs_that_were_edited_are_refused(tmp_path: Path) -> None:
    path = _small(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        costs = file["C"][1]
        costs[np.flatnonzero(np.isfinite(costs))[0]] += 1e-9
        file["C"][1] = costs
    store = LapStore.open(path)
    store.record(0)
    with pytest.raises(UserError, match=r"a\.h5: record 1 \(sparse, n=8, seed=1\).*edited"):
        store.cost(1)


def test_costs_that_are_drawn_otherwise_than_before_are_refused(tmp_path: Path) -> None:
    path = _small(tmp_path / "a.h5", "seeded")
    with h5py.File(path, "r+") as file:
        file["seed"][2] = 17
    with pytest.raises(UserError, match=r"record 2 \(sparse, n=8, seed=17\).*draws otherwise.*generate the file"):
        LapStore.open(path).cost(2)


def test_an_unknown_family_in_a_seeded_file_is_named(tmp_path: Path) -> None:
    path = _small(tmp_path / "a.h5", "seeded")
    with h5py.File(path, "r+") as file:
        file["family"][0] = "quantum"
    with pytest.raises(UserError, match=r"record 0: family 'quantum' is unknown.*--storage dense"):
        LapStore.open(path).cost(0)


def test_files_that_are_no_store_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.h5: no such file"):
        LapStore.open(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("not HDF5")
    with pytest.raises(UserError, match=r"text\.h5: not an HDF5 file"):
        LapStore.open(tmp_path / "text.h5")
    whole = _small(tmp_path / "whole.h5").read_bytes()
    for share in (0.3, 0.7, 0.95):
        (tmp_path / "cut.h5").write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(UserError, match=r"cut\.h5: damaged or truncated"):
            LapStore.open(tmp_path / "cut.h5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1]
    with pytest.raises(UserError, match="format is not"):
        LapStore.open(tmp_path / "other.h5")
    with h5py.File(_small(tmp_path / "new.h5"), "r+") as file:
        file.attrs["schema_version"] = 3
    with pytest.raises(UserError, match=r"newer kdgat .schema_version is 3, this one reads up to 2.: update kdgat"):
        LapStore.open(tmp_path / "new.h5")
    with h5py.File(_small(tmp_path / "less.h5"), "r+") as file:
        del file["u"]
    with pytest.raises(UserError, match="column u is missing"):
        LapStore.open(tmp_path / "less.h5")
    with h5py.File(_small(tmp_path / "short.h5"), "r+") as file:
        file["u"].resize((2,))
    with pytest.raises(UserError, match=r"column u .* of shape \(2,\), expected .* \(3,\)"):
        LapStore.open(tmp_path / "short.h5")
    with h5py.File(_small(tmp_path / "ragged.h5"), "r+") as file:
        file["v"][1] = np.zeros(5)
    with pytest.raises(UserError, match="record 1: v has 5 entries, n is 8"):
        LapStore.open(tmp_path / "ragged.h5").record(1)


@pytest.mark.parametrize("column", ["content", "family", "parameters"])
def test_text_that_was_damaged_is_named_with_its_file(tmp_path: Path, column: str) -> None:
    path = _small(tmp_path / "a.h5", "seeded")
    with h5py.File(path, "r+") as file:
        file[column][1] = 32 * b"\xff"
    with pytest.raises(UserError, match=r"a\.h5: damaged or truncated .*codec"):
        LapStore.open(path).record(1)


def test_metadata_in_which_a_bit_was_turned_are_refused(tmp_path: Path) -> None:
    path = _small(tmp_path / "a.h5", "seeded")
    content = path.read_bytes()
    headers = [match.start() for match in re.finditer(b"OHDR", content)]  # of the root group and the columns
    assert len(headers) > 10
    for header in headers:
        damaged = bytearray(content)
        damaged[header + 30] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"a\.h5: (damaged or truncated|column \w+ is missing)"):
            LapStore.open(path).record(0)


def test_an_index_out_of_range_is_named(store: LapStore) -> None:
    with pytest.raises(UserError, match="there is no record 40; give an index from 0 to 39"):
        store.record(40)
