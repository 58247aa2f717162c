"""HDF5 files are opened here and nowhere else, which keeps h5py from whoever opens none."""

import os
from pathlib import Path
from typing import Any

import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
FIRST_OFFSET = 512  # of what may stand before it: 0, 512, 1024, ... bytes (HDF5 file format specification, II.A)


def is_hdf5(path: Path) -> bool:
    """Return whether a file is one of HDF5; OSError if it cannot be read now, which h5py takes for another kind."""
    with path.open("rb") as file:
        size, offset = file.seek(0, os.SEEK_END), 0
        while offset < size:
            file.seek(offset)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
            offset = max(FIRST_OFFSET, 2 * offset)
    return False


def open_hdf5(file: Path | Any, mode: str = "r", **options: Any) -> h5py.File:
    """Open a file, by its path or as a binary file object, without locks; options are those of `h5py.File`.

    File systems of clusters often refuse HDF5's locks. None is needed: a finished file never changes, and one that is
    written has its writer's name, or is below a run directory that its writer owns.
    """
    return h5py.File(file, mode, locking=False, **options)
