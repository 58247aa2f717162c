"""Which arrays a store's file has for a column: one, or the parts of a packed one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from kdgat.graphs.packing import BLOCK_ROWS, PackedRows, Packing, num_mask_bytes
from kdgat.graphs.schema import PACKED_PARTS, POINTERS, Column

POINTER: Final = "pointer"  # of which there are G + 1


@dataclass(frozen=True)
class Dataset:
    """One array of a file.

    Attributes:
        name: of the HDF5 dataset.
        level: what the hash of the content calls its rows.
        counted: what it has one row per: a level, `POINTER`, or the name of a part of a packed column.
        dtype: the type in the file.
        width: numbers per row; None: one, without an axis of its own.
        row_axis: the axis along which the rows lie.
    """

    name: str
    level: str
    counted: str
    dtype: str
    width: int | None = None
    row_axis: int = 0

    def shape(self, num_rows: int) -> tuple[int, ...]:
        """Return the shape of so many rows."""
        if self.width is None:
            return (num_rows,)
        return (self.width, num_rows) if self.row_axis else (num_rows, self.width)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape has as many numbers per row."""
        if len(shape) != (1 if self.width is None else 2):
            return False
        return self.width is None or shape[1 - self.row_axis] == self.width

    @property
    def layout(self) -> str:
        """Describe the shape: `(edges, 3)`."""
        rows = f"{self.counted}s"
        if self.width is None:
            return f"({rows},)"
        return f"({self.width}, {rows})" if self.row_axis else f"({rows}, {self.width})"


def datasets_of(column: Column, num_features: int) -> tuple[Dataset, ...]:
    """Return the arrays of a column; `num_features` is the width where the column leaves it open."""
    if not column.packed:
        width = num_features if column.width is None else column.width or None
        counted = POINTER if column in POINTERS else column.level
        return (Dataset(column.name, column.level, counted, column.file_dtype, width, column.row_axis),)
    names = [f"{column.name}_{part}" for part in PACKED_PARTS]
    _, _, blocks, values = names
    kept = (
        (column.level, "uint8", num_mask_bytes(column.width or num_features)),
        (column.level, "int16", None),
        (blocks, "int64", None),
        (values, column.file_dtype, None),
    )
    return tuple(
        Dataset(name, counted, counted, dtype, width) for name, (counted, dtype, width) in zip(names, kept, strict=True)
    )


def count_blocks(num_rows: int) -> int:
    """Return how many blocks so many packed rows have."""
    return -(-num_rows // BLOCK_ROWS)


def array_of(
    column: Column, packing: Packing | None, found: Callable[[str], NDArray[Any]]
) -> NDArray[Any] | PackedRows:
    """Return a column from the arrays of a file, by their names."""
    if packing is None:
        return found(column.name)
    mask, begin, block, values = (found(f"{column.name}_{part}") for part in PACKED_PARTS)
    return PackedRows(packing, mask, begin, block, values)
