"""Cost matrices in every format, and stores of instances."""

from __future__ import annotations

import io
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from kdgat.assignment import read_cost
from kdgat.lap.instances.distributions import generate
from kdgat.lap.instances.inspection import check_records, inspect_store
from kdgat.lap.instances.records import label
from kdgat.lap.instances.schema1 import read_record
from kdgat.lap.instances.store import LapStore, write_store
from tests.fuzz.inputs import damaged
from tests.fuzz.target import Target, read_or_refuse
from tests.lap.schema1_files import write_schema1

COORDINATES = b"%%MatrixMarket matrix coordinate real general\n% a comment\n3 3 4\n1 1 2.5\n2 2 -1\n3 3 4e2\n1 3 7\n"
TEXTS = {
    ".mtx": [
        COORDINATES,
        COORDINATES.replace(b"real", b"pattern"),
        COORDINATES.replace(b"general", b"symmetric"),
        b"%%MatrixMarket matrix array integer general\n2 2\n1\n2\n3\n4\n",
    ],
    ".csv": [b"1,2.5,inf\n3,4,-5\n", b"1e3, 2\n3, 4\n"],
    ".txt": [b" 2\n 1 2 3\n 4\n", b"2\n1 1 5\n1 2 6\n2 1 7\n"],
}
SUFFIXES = (".npy", ".npz", *TEXTS)


@cache
def samples() -> dict[str, list[bytes]]:
    """Return whole files by suffix."""
    cost = np.array([[1.0, 2.0, np.inf], [4.0, 5.0, 6.0], [0.0, -1.0, 3.0]])
    found = dict(TEXTS)
    arrays = [io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()]
    np.save(arrays[0], cost)
    np.save(arrays[1], cost[1:].astype(np.int16))
    np.savez(arrays[2], cost=np.nan_to_num(cost), mask=np.isinf(cost))
    np.savez_compressed(arrays[3], own=cost)
    found[".npy"] = [one.getvalue() for one in arrays[:2]]
    found[".npz"] = [one.getvalue() for one in arrays[2:]]
    instances = [generate("uniform", 3, 1), generate("sparse", 4, 2)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_store(folder / "seeded.h5", instances[:1], "seeded")
        write_store(folder / "dense.h5", instances, "dense")
        write_schema1(folder / "old.h5", map(label, instances))
        found[".h5"] = [path.read_bytes() for path in sorted(folder.iterdir())]
    return found


def _matrices() -> st.SearchStrategy[tuple[str, bytes]]:
    return st.sampled_from(SUFFIXES).flatmap(lambda suffix: st.tuples(st.just(suffix), damaged(samples()[suffix])))


def _check_matrix(folder: Path, drawn: tuple[str, bytes]) -> None:
    suffix, data = drawn
    path = folder / f"cost{suffix}"
    path.write_bytes(data)
    read_or_refuse(folder, lambda: read_cost(path, read_record=read_record))


def _check_store(folder: Path, data: bytes) -> None:
    path = folder / "a.h5"
    path.write_bytes(data)
    read_or_refuse(folder, lambda: read_cost(path, 0, read_record=read_record))
    read_or_refuse(folder, lambda: LapStore.open(path).record(-1))
    read_or_refuse(folder, lambda: check_records(inspect_store(path), 2))


TARGETS = (
    Target("matrix", 100, _matrices, _check_matrix),
    Target("store-hdf5", 40, lambda: damaged(samples()[".h5"]), _check_store),
)
