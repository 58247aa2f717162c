"""Files of instances as `kdgat lap bucket` writes them, DIR/<size class>/full/<split>.h5, and what is in them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdgat.base import UserError
from kdgat.lap.names import TEST, TRAIN, VALIDATION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kdgat.lap.instances.store import LapStore

# Name of a class and the largest n in it; the last takes all that is larger. A file may hold several sizes.
SIZE_CLASSES: Final = (("small", 1024), ("mid_1536", 1536), ("mid_2048", 2048), ("mid_3072", 3072))
LARGEST_CLASS: Final = "large_4096"
SUBSET: Final = "full"  # folder between the class and its splits
SPLIT_FILES: Final = {TRAIN: "train", VALIDATION: "val", TEST: "test"}

Counts = dict[int, dict[str, int]]  # size -> split -> instances


def size_class(n: int) -> str:
    """Return the name of the class of a size."""
    return next((name for name, largest in SIZE_CLASSES if n <= largest), LARGEST_CLASS)


def find_files(source: Path, size: int) -> dict[str, Path]:
    """Find the files that hold the instances of one size, by split.

    Raises:
        UserError: naming the file that is missing.
    """
    files = {split: source / size_class(size) / SUBSET / f"{name}.h5" for split, name in SPLIT_FILES.items()}
    for path in files.values():
        if not path.is_file():
            raise UserError(
                f"data.source={source}: {path} is missing, which holds the instances of size {size}: "
                f"write it by `kdgat lap bucket FILE --out {source}`, or correct --data"
            )
    return files


def open_size(path: Path, split: str, size: int) -> tuple[LapStore, NDArray[np.int64]]:
    """Open a file of instances; return it with the places of those of one size.

    Raises:
        UserError: if it has none of that size, naming the sizes that it has.
    """
    from kdgat.lap.instances.store import LapStore  # h5py: a plan without files does without

    store = LapStore.open(path)
    indices = store.indices(size=size)
    if len(indices) == 0:
        counts = Counter(int(one) for one in store.sizes())
        sizes = ", ".join(f"{count} of size {one}" for one, count in sorted(counts.items())) or "no instance"
        raise UserError(
            f"{path}: has no instance of size {size} for {split} (it has: {sizes}): correct --data, or choose stages "
            "of these sizes by --stages"
        )
    return store, indices


def count_size(source: Path, size: int) -> dict[str, int]:
    """Count the instances of one size, by split; UserError where there are none."""
    return {split: len(open_size(path, split, size)[1]) for split, path in find_files(source, size).items()}
