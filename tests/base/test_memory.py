"""A small file that says it holds more than there is memory for is refused before it is unpacked."""

import gzip
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

from kdgat.assignment import matrix_market
from kdgat.assignment.files import read_matrix
from kdgat.base import MIB, UserError, memory
from kdgat.trees.reading.masks import read_mask

REFUSED = "holds .*, unpacked, and this machine has .* left"


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, matrix_market):
        monkeypatch.setattr(module, "available_memory", lambda: MIB)


def test_what_there_is_memory_for_is_known_to_the_machine() -> None:
    assert MIB < memory.available_memory() < 1 << 60


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
