"""A small file that says it holds more than there is memory for is refused before it is unpacked."""

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

from kdgat.assignment import matrix_market
from kdgat.assignment.files import read_matrix
from kdgat.base import MIB, UserError, cgroups, memory
from kdgat.trees.reading.masks import read_mask

REFUSED = "holds .*, unpacked, and this machine has .* left"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, matrix_market):
        monkeypatch.setattr(module, "available_memory", lambda: MIB)


def test_what_there_is_memory_for_is_known_to_the_machine() -> None:
    assert MIB < memory.available_memory() < 1 << 60


def group(folder: Path, limit: str, used: int, inactive: int, *, version: int) -> None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, (limit, str(used)), strict=True):
        (folder / name).write_text(f"{text}\n")
    key = "inactive_file" if version == 2 else "total_inactive_file"
    (folder / "memory.stat").write_text(f"anon {used}\n{key} {inactive}\n")


@pytest.mark.parametrize(("version", "own", "root"), [(2, "0::/job/step", ""), (1, "9:memory:/job/step", "memory")])
def test_a_limit_of_a_job_or_container_counts_wherever_on_the_path_of_its_groups_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, own: str, root: str
) -> None:
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "_of_machine", lambda: 100 * MIB)
    (tmp_path / "own").write_text(own + "\n")
    job = tmp_path / "cgroup" / root / "job"
    assert memory.available_memory() == 100 * MIB
    unlimited = "max" if version == 2 else str((1 << 63) - 4096)
    group(job / "step", unlimited, 0, 0, version=version)
    assert memory.available_memory() == 100 * MIB
    group(job, str(8 * MIB), 6 * MIB, MIB, version=version)
    assert memory.available_memory() == 3 * MIB
    group(job, str(8 * MIB), 9 * MIB, 0, version=version)
    assert memory.available_memory() == 0
    (job / "memory.stat").write_text("words of another kernel, in a line\n")
    assert memory.available_memory() == 100 * MIB


def test_chunks_that_were_never_written_take_no_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("cost", shape=(1 << 20, 1 << 20), chunks=(1 << 10, 1 << 10), dtype="f8", compression="gzip")
    with pytest.raises(UserError, match=REFUSED):
        read_matrix(tmp_path / "a.h5")


@pytest.mark.usefixtures("little_memory")
def test_arrays_and_texts_that_grow_are_refused(tmp_path: Path) -> None:
    zeros = np.zeros((1000, 1000))
    np.savez_compressed(tmp_path / "a.npz", cost=zeros)
    with gzip.open(tmp_path / "a.mtx.gz", "wt") as file:
        file.write("%%MatrixMarket matrix array real general\n1000 1000\n" + "0\n" * 1_000_000)
    for name in ("a.npz", "a.mtx.gz"):
        assert (tmp_path / name).stat().st_size < 20_000
        with pytest.raises(UserError, match=REFUSED):
            read_matrix(tmp_path / name)


@pytest.mark.usefixtures("little_memory")
def test_a_picture_that_grows_is_refused(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((2000, 2000), np.uint8), compression="zlib")
    with pytest.raises(UserError, match=REFUSED):
        read_mask(tmp_path / "a.tif")
