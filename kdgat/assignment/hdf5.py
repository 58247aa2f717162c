"""Read plain matrices out of HDF5 files: h5py's, pandas', and those of MATLAB from version 7.3 on.

MATLAB keeps a matrix column by column, so that other programs see it transposed, and a sparse one as a group.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.base.memory import require_memory

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MATLAB: Final = "MATLAB_class"  # attribute of what MATLAB has written
MATLAB_SPARSE: Final = "MATLAB_sparse"  # attribute of a group with a sparse matrix: its number of rows
COST, MASK = "cost", "mask"  # names that say what they hold


def read_hdf5(path: Path, key: str | None) -> tuple[Any, Any]:
    """Read the matrix [n, m] of a file, or the one that `key` names, and, beside one named `cost`, its `mask`.

    Raises:
        UserError: if the file is none, or holds several matrices, naming them.
    """
    from kdgat.base.hdf5 import open_hdf5  # not needed where files are of other kinds

    try:
        with open_hdf5(path) as file:
            found: dict[str, Any] = {}
            file.visititems(lambda name, item: found.update({name: item}) if _is_matrix(name, item) else None)
            chosen = (
                key if key is not None else COST if COST in found else next(iter(found)) if len(found) == 1 else None
            )
            if chosen not in found:
                raise UserError(f"{path}: {_choice(file, found, key)}")
            mask = _read(path, found[MASK]).astype(bool) if chosen == COST and MASK in found else None
            return _read(path, found[chosen]), mask
    except UserError:
        raise
    except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: not an HDF5 file, or damaged ({reason}); write it again, or as .npy") from error


def _is_matrix(name: str, item: Any) -> bool:
    """Return whether an item of a file is a matrix of numbers."""
    if not name.isprintable():  # damage
        return False
    if MATLAB_SPARSE in item.attrs:
        return True
    if name.startswith("#") or not hasattr(item, "shape") or ("/" in name and MATLAB_SPARSE in item.parent.attrs):
        return False
    return item.shape is not None and len(item.shape) == 2 and item.dtype.kind in "fiub"


def _choice(file: Any, found: dict[str, Any], key: str | None) -> str:
    """Say which matrices there are, and how to choose one."""
    if found:
        wanted = "holds several matrices" if key is None else f"holds no matrix {key!r}"
        names = [
            name if MATLAB_SPARSE in item.attrs else f"{name} {item.shape[:: -1 if MATLAB in item.attrs else 1]}"
            for name, item in found.items()
        ]
        return f"{wanted}: choose one by --key, of {', '.join(names)}"
    others: list[str] = []
    file.visititems(lambda name, item: others.append(f"{name!r} {item.shape}") if hasattr(item, "shape") else None)
    return (
        f"holds no matrix of numbers [rows, columns], but {', '.join(others[:5]) or 'nothing'}; a file of problems is "
        "one that kdgat lap generate, import or merge has written"
    )


def _read(path: Path, item: Any) -> NDArray[Any] | csr_array:
    arrays = [item[name] for name in item] if MATLAB_SPARSE in item.attrs else [item]
    require_memory(path, sum(array.nbytes for array in arrays))  # chunks of zeros take nearly none in the file
    if MATLAB_SPARSE in item.attrs:
        from scipy.sparse import csc_array

        start = item["jc"][:]
        data, rows = (item[name][:] if name in item else np.zeros(0, int) for name in ("data", "ir"))
        matrix = csc_array((data, rows, start), shape=(int(item.attrs[MATLAB_SPARSE]), start.size - 1))
        matrix.check_format(full_check=True)  # places outside would be written to
        return matrix.tocsr()
    values = item[()]
    return values.T if MATLAB in item.attrs else values
