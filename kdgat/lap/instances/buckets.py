"""Split a file of assignment problems into size classes and each into training, validation and test."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kdgat.base import UserError, sync_to_disk
from kdgat.base.files import temporary_path
from kdgat.lap.instances.files import LARGEST_CLASS, SIZE_CLASSES, SPLIT_FILES, SUBSET, size_class
from kdgat.lap.instances.records import StoredRecord, content_hash, split_costs
from kdgat.lap.instances.store import LapStore, remove_abandoned, write_store

SPLITS: Final = tuple(SPLIT_FILES.values())
SHARES: Final = (70, 15, 15)  # percent


@dataclass
class BucketSummary:
    """Records by (size class, split), and how many were left out because their content is there already."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_duplicates: int = 0


def split_counts(count: int) -> tuple[int, int, int]:
    """Share `count` records out as 70/15/15 by largest remainders.

    A single record is for training, two are for training and test, and from three on each split has one at least.
    """
    if count <= 2:
        return (min(count, 1), 0, max(count - 1, 0))
    counts = [count * share // 100 for share in SHARES]
    by_remainder = sorted(range(len(SHARES)), key=lambda split: -(count * SHARES[split] % 100))
    for split in by_remainder[: count - sum(counts)]:
        counts[split] += 1
    for split in (1, 2):
        if counts[split] == 0:
            counts[split] += 1
            counts[0] -= 1
    return (counts[0], counts[1], counts[2])


def bucket_path(folder: Path, name: str, split: str) -> Path:
    """Return where a split of a size class lies."""
    return folder / name / SUBSET / f"{split}.h5"


def existing_buckets(folder: Path) -> list[Path]:
    """Return the split files that lie in a folder already."""
    names = [name for name, _ in SIZE_CLASSES] + [LARGEST_CLASS]
    paths = [bucket_path(folder, name, split) for name in names for split in SPLITS]
    return [path for path in paths if path.exists()]


def assign_splits(store: LapStore, seed: int) -> tuple[dict[tuple[str, str], list[int]], int]:
    """Decide which records go to which (size class, split); returns them and how many duplicates were left out.

    Each family and size is shared out 70/15/15 in an order that depends on the seed and on the contents alone, so that
    neither the order of the records nor the storage matters, and a content is in one split.
    """
    families, sizes, seeds, contents = store.families(), store.sizes(), store.seeds(), store.contents()
    # The same costs may stand under two names: keep the same one of them whatever the order of the records.
    in_order = sorted(range(len(store)), key=lambda index: (contents[index], families[index], seeds[index]))
    kept = [
        index for place, index in enumerate(in_order) if place == 0 or contents[index] != contents[in_order[place - 1]]
    ]
    strata: dict[tuple[int, str], list[int]] = {}
    for index in kept:
        strata.setdefault((int(sizes[index]), families[index]), []).append(index)
    chosen: dict[tuple[str, str], list[int]] = {}
    for (size, _), members in sorted(strata.items()):
        members.sort(key=lambda index: hashlib.sha256(f"{seed} {contents[index]}".encode()).digest())
        start = 0
        for split, count in zip(SPLITS, split_counts(len(members)), strict=True):
            chosen.setdefault((size_class(size), split), []).extend(members[start : start + count])
            start += count
    return chosen, len(store) - len(kept)


def write_buckets(path: Path, folder: Path, seed: int, *, on_record: Callable[[], None] | None = None) -> BucketSummary:
    """Write `folder/<size class>/full/{train,val,test}.h5` from a store, in its storage.

    All files are complete before the first is moved to its place, and splits of an earlier run are replaced by them.
    UserError names what is wrong with the store.
    """
    store = LapStore.open(path)
    if len(store) == 0:
        raise UserError(f"{path}: holds no records, there is nothing to split; generate some first")
    chosen, num_duplicates = assign_splits(store, seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)
    temporary = temporary_path(folder)
    summary = BucketSummary(num_duplicates=num_duplicates)
    try:
        for (name, split), indices in chosen.items():
            records = _read(store, indices, on_record)
            summary.counts[name, split] = write_store(bucket_path(temporary, name, split), records, store.storage)
        _move(temporary, folder, list(chosen))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return summary


def _read(store: LapStore, indices: Sequence[int], on_record: Callable[[], None] | None) -> Iterator[StoredRecord]:
    for index, record in zip(indices, store.stored_records(indices), strict=True):
        if record.costs is not None and content_hash(*split_costs(record.costs, record.n)) != record.content:
            store.record(index)  # says what is wrong
        yield record
        if on_record is not None:
            on_record()


def _move(temporary: Path, folder: Path, written: Sequence[tuple[str, str]]) -> None:
    """Put the new files in place of all old ones: an old test split would hold what is now trained on."""
    targets = {bucket_path(folder, name, split): bucket_path(temporary, name, split) for name, split in written}
    for path in existing_buckets(folder):
        path.unlink()
    for target, source in targets.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        sync_to_disk(target.parent)
