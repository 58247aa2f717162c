"""Merge files of assignment problems into one, each problem once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from kdgat.base import UserError
from kdgat.lap.instances.distributions import DISTRIBUTIONS, generate
from kdgat.lap.instances.records import Record, StoredRecord, content_hash, to_stored
from kdgat.lap.instances.schema1 import Schema1Store, open_store
from kdgat.lap.instances.store import LapStore, Storage, write_store

# A matrix of the first schema has a big number for forbidden pairs if it is so many times the next largest one.
_BIG_RATIO: Final = 20.0


@dataclass
class MergeSummary:
    """What a merge has done; `duplicates` counts those left out by input file."""

    storage: Storage
    num_records: int = 0
    duplicates: dict[Path, int] = field(default_factory=dict)
    num_relabelled: int = 0
    num_big_numbers: int = 0
    big_number: float = 0.0


def merge_stores(
    out: Path,
    paths: Sequence[Path],
    *,
    storage: Storage | None = None,
    forbidden_from: float | None = None,
    on_record: Callable[[StoredRecord], None] | None = None,
) -> MergeSummary:
    """Write the records of all files to `out`, in order, each content once; reads files of both schemas.

    `storage` is by default `seeded` if an input is and all records have seeds, else `dense`. Costs of at least
    `forbidden_from` in files of the first schema are forbidden pairs. Memory holds one instance at a time and a hash
    per record. UserError names an input that cannot be read, before anything is written, and a record that no seed
    brings back (`seeded`).
    """
    if not paths:
        raise UserError("no files to merge: name at least one")
    stores = [open_store(path) for path in paths]
    if storage is None:
        can_be_seeded = all(isinstance(store, LapStore) and store.is_generated() for store in stores)
        storage = "seeded" if can_be_seeded and any(store.storage == "seeded" for store in stores) else "dense"
    summary = MergeSummary(storage, duplicates=dict.fromkeys(paths, 0))
    seen: set[str] = set()

    def records() -> Iterator[StoredRecord]:
        for path, store in zip(paths, stores, strict=True):
            if isinstance(store, Schema1Store):
                fresh = _read_schema1(store, seen, summary, forbidden_from)
            else:
                fresh = _read(store, seen, summary.storage)
            num_fresh = 0
            for record in fresh:
                num_fresh += 1
                yield record
            summary.duplicates[path] += len(store) - num_fresh

    summary.num_records = write_store(out, records(), storage, on_record=on_record)
    summary.num_relabelled = sum(store.num_relabelled for store in stores if isinstance(store, Schema1Store))
    return summary


def num_records(paths: Sequence[Path]) -> int:
    """Count the records of several files."""
    return sum(len(open_store(path)) for path in paths)


def _read(store: LapStore, seen: set[str], storage: Storage) -> Iterator[StoredRecord]:
    """Return the records whose contents are new, in the storage that is wanted."""
    fresh = []
    for index, content in enumerate(store.contents()):
        if content not in seen:
            seen.add(content)
            fresh.append(index)
    if store.storage == storage == "seeded":
        yield from store.stored_records(fresh)
        return
    for index in fresh:
        record = store.record(index)  # compares the content with its hash
        if storage == "seeded":
            _check_reproducible(record, f"{store.path}: record {index}")
        yield to_stored(record, is_dense=storage == "dense")


def _read_schema1(
    store: Schema1Store, seen: set[str], summary: MergeSummary, forbidden_from: float | None
) -> Iterator[StoredRecord]:
    if summary.storage == "seeded":
        raise UserError(
            f"{store.path}: a file of the first schema holds no seeds, its matrices cannot be drawn again: merge with "
            "--storage dense"
        )
    for index in range(len(store)):
        record = store.record(index, forbidden_from=forbidden_from)
        if record.content in seen:
            continue
        seen.add(record.content)
        if record.mask is None and _has_big_number(record):
            summary.num_big_numbers += 1
            summary.big_number = float(record.cost.max())
        yield to_stored(record, is_dense=True)


def _has_big_number(record: Record) -> bool:
    """Return whether the largest cost is repeated and far above all others, as if it forbade pairs."""
    largest = float(record.cost.max())
    others = record.cost[record.cost < largest]
    is_repeated = others.size < record.n**2 - record.n
    return is_repeated and others.size > 0 and largest > _BIG_RATIO * float(np.abs(others).max())


def _check_reproducible(record: Record, where: str) -> None:
    """Refuse a record that its family and seed do not bring back, bit by bit."""
    instance = record.instance
    reason = "it was not generated"
    if instance.parameters is not None and instance.family in DISTRIBUTIONS:
        try:
            again = generate(instance.family, instance.n, instance.seed, **instance.parameters)
        except UserError as error:
            reason = str(error)
        else:
            if content_hash(again.cost, again.mask) == record.content:
                return
            reason = f"seed {instance.seed} of family {instance.family} now gives other costs"
    raise UserError(f"{where}: cannot be kept as a seed, {reason}: merge with --storage dense")
