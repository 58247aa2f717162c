"""Read files of the first schema: flattened matrices and labels of variable length, appended record by record.

Its keys are those of the store without `seed`, and any but `C` may be missing. Labels are kept if their duals prove
them, and solved for otherwise.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from kdgat.assignment import CertificateError, CostError, InfeasibleError
from kdgat.base import UserError
from kdgat.lap.instances.distributions import Instance
from kdgat.lap.instances.label import Problem, check_assignment, check_label
from kdgat.lap.instances.records import Record, content_hash, label
from kdgat.lap.instances.store import (
    COLUMNS,
    COSTS,
    FAMILY,
    FORMAT_KEY,
    NOISE_STD,
    OPTIMUM,
    ROWS,
    TAG,
    LapStore,
    N,
    U,
    V,
    damage_named,
    open_hdf5,
)

UNNAMED_FAMILY = "unknown"


class Schema1Store:
    """Read records of one file; make one with `Schema1Store.open(path)`."""

    storage = "dense"

    def __init__(self, path: Path, num_records: int, sizes: NDArray[np.int64], families: list[str]) -> None:
        """Hold what `open` has read and checked."""
        self.path = path
        self.num_relabelled = 0
        self._num_records = num_records
        self._sizes = sizes
        self._families = families

    @classmethod
    def open(cls, path: Path | str) -> Schema1Store:
        """Open a file. UserError says why if it is none or its columns do not fit each other."""
        path = Path(path)
        with open_hdf5(path) as file, damage_named(path):
            if COSTS not in file:
                raise UserError(f"{path}: HDF5, but column {COSTS} is missing: not a file of assignment problems")
            num_records = len(file[COSTS])
            for name in (N, U, V, ROWS, COLUMNS, OPTIMUM, FAMILY, NOISE_STD, TAG):
                if name in file and len(file[name]) != num_records:
                    raise UserError(
                        f"{path}: column {name} has {len(file[name])} records, C has {num_records}: writing it was "
                        "cut off; repair or write the file again"
                    )
            if N in file:
                sizes = np.asarray(file[N][:], dtype=np.int64).reshape(num_records)
            else:
                sizes = np.array([math.isqrt(np.size(costs)) for costs in file[COSTS]], dtype=np.int64)
            families = [_text(name) for name in file[FAMILY][:]] if FAMILY in file else []
        return cls(path, num_records, sizes, families or [UNNAMED_FAMILY] * num_records)

    def __len__(self) -> int:
        """Return the number of records."""
        return self._num_records

    def sizes(self) -> NDArray[np.int64]:
        """Return n of every record."""
        return self._sizes.copy()

    def families(self) -> list[str]:
        """Return the family of every record."""
        return list(self._families)

    def record(self, index: int, *, forbidden_from: float | None = None) -> Record:
        """Return a labelled record; costs of `forbidden_from` or more, and infinite ones, are forbidden pairs.

        UserError names a record whose matrix is not square, holds NaN or cannot be solved.
        """
        values = self._read(index)
        instance = self._instance(values, index, forbidden_from)
        record = _proved(instance, values)
        if record is None:
            self.num_relabelled += 1
            try:
                record = label(instance)
            except (CostError, InfeasibleError) as error:
                raise UserError(f"{self.path}: record {index}: {error}") from error
        return record

    def cost(self, index: int) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        """Return costs and mask of a record."""
        instance = self._instance(self._read(index), index, None)
        return instance.cost, instance.mask

    def _instance(self, values: dict[str, Any], index: int, forbidden_from: float | None) -> Instance:
        where = f"{self.path}: record {index}"
        costs = np.asarray(values[COSTS], dtype=np.float64).ravel()
        n = int(self._sizes[index])
        if n < 1 or len(costs) != n * n:
            raise UserError(f"{where}: C has {len(costs)} entries, n is {n}: expected n·n; write the file again")
        mask = costs >= (math.inf if forbidden_from is None else forbidden_from)
        allowed = costs[~mask]
        if not np.isfinite(allowed).all():
            raise UserError(
                f"{where}: C holds {allowed[~np.isfinite(allowed)][0]}; only +inf, which forbids a pair, is allowed"
            )
        return Instance(
            family=self._families[index],
            seed=0,
            cost=np.where(mask, 0.0, costs).reshape(n, n),
            mask=mask.reshape(n, n) if mask.any() else None,
            noise_std=float(values.get(NOISE_STD, 0.0)),
            tag=_text(values.get(TAG, "")),
        )

    def _read(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise UserError(
                f"{self.path}: there is no record {index}; "
                + (f"give an index from 0 to {len(self) - 1}" if len(self) else "the file holds none")
            )
        with open_hdf5(self.path) as file, damage_named(self.path):
            names = (COSTS, U, V, ROWS, COLUMNS, OPTIMUM, NOISE_STD, TAG)
            return {name: file[name][index] for name in names if name in file}


def open_store(path: Path | str) -> LapStore | Schema1Store:
    """Open a file of assignment problems of either schema."""
    return Schema1Store.open(path) if _schema_of(Path(path)) == 1 else LapStore.open(path)


def read_record(path: Path, index: int | None) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None] | None:
    """Return costs and mask of one problem of a file of either schema, or None if the file is of another kind.

    `index` may be None if the file holds a single problem.
    """
    if _schema_of(path) == 0:
        return None
    store = open_store(path)
    if index is None and len(store) != 1:
        raise UserError(f"{path}: holds {len(store)} problems: choose one by --index, from 0 to {len(store) - 1}")
    return store.cost(index or 0)


def _schema_of(path: Path) -> int:
    """Return 1 or 2 for files of assignment problems, 0 for others; a matrix that is named C is no list of problems."""
    with open_hdf5(path) as file, damage_named(path):
        if FORMAT_KEY in file.attrs:
            return 2
        if COSTS not in file or not isinstance(file[COSTS], h5py.Dataset):
            return 0
        is_ragged = h5py.check_vlen_dtype(file[COSTS].dtype) is not None
        return int(is_ragged or N in file or OPTIMUM in file)


def _proved(instance: Instance, values: dict[str, Any]) -> Record | None:
    """Return the record with the labels of the file, or None if they are missing or prove nothing."""
    n = instance.n
    arrays = [values.get(name) for name in (U, V, ROWS, COLUMNS)]
    if OPTIMUM not in values or any(array is None or np.shape(array) != (n,) for array in arrays):
        return None
    u, v = (np.asarray(array, dtype=np.float64) for array in arrays[:2])
    rows, columns = (np.asarray(array, dtype=np.int64) for array in arrays[2:])
    in_range = all(array.min() >= 0 and array.max() < n for array in (rows, columns))
    if not in_range or not np.isfinite(u).all() or not np.isfinite(v).all():
        return None
    problem = Problem("", instance.cost, instance.mask, u, v, float(values[OPTIMUM]))
    try:
        check_label(problem)
        check_assignment(problem, "", rows, columns)
    except CertificateError:
        return None
    order = np.argsort(rows)
    content = content_hash(instance.cost, instance.mask)
    return Record(instance, u, v, rows[order], columns[order], problem.optimum, content)


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
