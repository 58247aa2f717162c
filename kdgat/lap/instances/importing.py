"""Bring assignment problems of one's own into a store: cost matrices from files, or logarithms of sparse matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kdgat.assignment import CostError, InfeasibleError, read_cost
from kdgat.assignment.files import Matrix
from kdgat.base import UserError
from kdgat.lap.instances.distributions import Instance
from kdgat.lap.instances.records import Record, StoredRecord, label
from kdgat.lap.instances.schema1 import read_record
from kdgat.lap.instances.store import write_store

DEFAULT_FAMILY: Final = "imported"


def import_matrices(
    out: Path,
    paths: Sequence[Path],
    *,
    family: str = DEFAULT_FAMILY,
    is_mc64: bool = False,
    on_record: Callable[[StoredRecord], None] | None = None,
) -> int:
    """Label the square matrices of all files and write them to a dense store; returns how many.

    With `is_mc64` they are not costs but the values of sparse matrices (`mc64_costs`). Each record is tagged with the
    name of its file. UserError names a file that holds no square matrix, or one that cannot be solved.
    """
    if not paths:
        raise UserError("no files to import: name at least one")
    return write_store(out, _records(paths, family, is_mc64), "dense", on_record=on_record)


def mc64_costs(values: NDArray[np.float64], mask: NDArray[np.bool_] | None) -> Matrix:
    """Return log max|a_i.| - log|a_ij| of a matrix; where it has no entry, or 0, the pair is forbidden.

    The optimal assignment puts entries of the largest product on the diagonal. Source: Duff and Koster, SIAM J. Matrix
    Anal. Appl. 22(4), 2001 (MC64, job 5).
    """
    magnitude = np.abs(values)
    absent = magnitude == 0.0
    if mask is not None:
        absent |= mask
    magnitude[absent] = 1.0
    logarithm = np.log(magnitude)
    logarithm[absent] = -np.inf
    largest = logarithm.max(axis=1, keepdims=True)
    largest[np.isneginf(largest)] = 0.0  # a row without entries, which the solver names
    cost = np.where(absent, 0.0, largest - logarithm)
    return cost, absent if absent.any() else None


def _records(paths: Sequence[Path], family: str, is_mc64: bool) -> Iterator[Record]:
    for path in paths:
        cost, mask = read_cost(path, read_record=read_record)
        if cost.shape[0] != cost.shape[1] or not cost.size:
            raise UserError(
                f"{path}: {cost.shape[0]} x {cost.shape[1]}: a store holds square matrices; kdgat lap solve takes "
                "others, too"
            )
        if is_mc64:
            cost, mask = mc64_costs(cost, mask)
        try:
            yield label(Instance(family, 0, cost, mask, tag=path.name))
        except (CostError, InfeasibleError) as error:
            raise UserError(f"{path}: {error}") from error
