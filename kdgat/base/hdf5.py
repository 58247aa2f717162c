"""HDF5 files are opened here and nowhere else, which keeps h5py from whoever opens none."""

from pathlib import Path
from typing import Any

import h5py


def open_hdf5(file: Path | Any, mode: str = "r", **options: Any) -> h5py.File:
    """Open a file, by its path or as a binary file object, without locks; options are those of `h5py.File`.

    File systems of clusters often refuse HDF5's locks. None is needed: a finished file never changes, and one that is
    written has its writer's name, or is below a run directory that its writer owns.
    """
    return h5py.File(file, mode, locking=False, **options)
