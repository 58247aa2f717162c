"""What graphs carry, as data: a schema lists their columns, and each family states its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal, get_args

import numpy as np

from kdgat.base import UserError

Level = Literal["graph", "node", "edge"]
DType = Literal["float32", "float64", "int8", "int16", "int32", "int64", "uint8"]
NarrowType = Literal["float16", "int8", "int16", "int32", "uint8"]  # narrower than what is computed with


@dataclass(frozen=True)
class Column:
    """State what one column holds.

    Attributes:
        name: what it is called in a store, in `GraphColumns` and in a batch.
        level: whether it has one row per graph, per node or per edge.
        dtype: the type that is computed with.
        width: numbers per row. 0: one, without an axis of its own; None: as many as features are named beside it.
        in_batch: whether models read it. Batches hold integers as int64, and floats as `dtype`.
        indexes: the list among the attributes of a store that the values are places in.
        narrow: the type in a file, where it is narrower. Writing refuses a value that it would change.
        packed: whether a file keeps only what is not usual of its rows (kdgat.graphs.packing); as float16.
    """

    name: str
    level: Level
    dtype: DType
    width: int | None = 0
    in_batch: bool = False
    indexes: str | None = None
    narrow: NarrowType | None = None
    packed: bool = False

    @property
    def file_dtype(self) -> str:
        """Return the type in a file."""
        return self.narrow or self.dtype

    @property
    def without_storage(self) -> Column:
        """Return the column as it is computed with, however it is stored."""
        return replace(self, narrow=None, packed=False)

    def stored_as(self, narrow: NarrowType, *, packed: bool = False) -> Column:
        """Return the same column in a narrower type, and packed, in a file."""
        return replace(self, narrow=narrow, packed=packed)

    @property
    def row_axis(self) -> int:
        """Return the axis along which the rows lie: the last one of edge_index, which keeps PyG's [2, E]."""
        return 1 if self.name == "edge_index" else 0

    @property
    def layout(self) -> str:
        """Describe the shape: `(edges, 3)`."""
        rows = f"{self.level}s"
        if self.width == 0:
            return f"({rows},)"
        width = "features" if self.width is None else str(self.width)
        return f"({width}, {rows})" if self.row_axis else f"({rows}, {width})"

    def shape(self, num_rows: int, num_features: int = 0) -> tuple[int, ...]:
        """Return the shape of that many rows; `num_features` is the width where the column leaves it open."""
        if self.width == 0:
            return (num_rows,)
        width = num_features if self.width is None else self.width
        return (width, num_rows) if self.row_axis else (num_rows, width)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether an array of this shape has the column's dimensions and width."""
        if len(shape) != (1 if self.width == 0 else 2):
            return False
        return not self.width or shape[1 - self.row_axis] == self.width


def _check_storage(column: Column) -> None:
    """Refuse a type in the file that is no narrower one of the same kind, and packing of what is no row of floats."""
    name, narrow = column.name, column.narrow
    if narrow is not None:
        if narrow not in get_args(NarrowType):
            raise UserError(f"{name}: narrow is {narrow!r}; give one of {', '.join(get_args(NarrowType))}")
        whole, kept = np.dtype(column.dtype), np.dtype(narrow)
        if (whole.kind == "f") != (kept.kind == "f") or kept.itemsize >= whole.itemsize:
            raise UserError(f"{name}: {column.dtype} cannot be stored as {narrow}; give a narrower type of its kind")
    if column.packed and (narrow != "float16" or column.dtype != "float32" or column.width == 0):
        raise UserError(f"{name}: packed, but not rows of float32 that are stored as float16; state them so")


# Offsets, which every set of columns has: graph g owns the nodes node_ptr[g]:node_ptr[g + 1].
NODE_PTR: Final = Column("node_ptr", "graph", "int64")
EDGE_PTR: Final = Column("edge_ptr", "graph", "int64")
POINTERS: Final = (NODE_PTR, EDGE_PTR)

X: Final = Column("x", "node", "float32", None, in_batch=True)
EDGE_INDEX: Final = Column("edge_index", "edge", "int32", 2, in_batch=True)  # source, destination; local to the graph
EDGE_ATTR: Final = Column("edge_attr", "edge", "float32", None, in_batch=True)
CORE: Final = (X, EDGE_INDEX)  # what every schema begins with

PACKED_PARTS: Final = ("mask", "begin", "block", "values")  # arrays of a packed column: kdgat.graphs.packing
_BATCH_NAMES: Final = ("graph_index", "batch", "ptr")  # what a batch has beside its columns


@dataclass(frozen=True)
class Schema:
    """List the columns of graphs beside their offsets: x and edge_index, edge_attr where edges have features, others.

    A tree whose target is three numbers, for instance, with its nodes placed in the plane:

    >>> schema = Schema((*CORE, Column("pos", "node", "float32", 2), Column("target", "graph", "float32", 3)))
    >>> "edge_attr" in schema
    False

    Raises:
        UserError: if a name is used twice or taken, or a column that all graphs have is missing or another one.
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        """Check names and core."""
        names = [column.name for column in self.columns]
        computed = [column.without_storage for column in self.columns]
        for core in (*CORE, EDGE_ATTR):
            if core in computed or (core is EDGE_ATTR and EDGE_ATTR.name not in names):
                continue
            raise UserError(f"{core.name}: is {self.by_name.get(core.name)}, must be {core}; begin with (*CORE, ...)")
        taken = {*_BATCH_NAMES, *(pointer.name for pointer in POINTERS)}
        taken |= {f"{column.name}_{part}" for column in self.columns if column.packed for part in PACKED_PARTS}
        for place, column in enumerate(self.columns):
            name = column.name
            if name in names[:place] or name in taken:
                raise UserError(f"{name}: the name is taken; choose another")
            if not name.isidentifier() or name.startswith("_"):
                raise UserError(f"{name!r}: no name of an attribute; use letters, digits and underscores")
            for key, value, known in (("level", column.level, Level), ("dtype", column.dtype, DType)):
                if value not in get_args(known):
                    raise UserError(f"{name}: {key} is {value!r}; give one of {', '.join(get_args(known))}")
            if column.width is None and name not in (X.name, EDGE_ATTR.name):
                raise UserError(f"{name}: width is None, which x and edge_attr alone may have; give a number")
            if column.width is not None and column.width < 0:
                raise UserError(f"{name}: width is {column.width}; give 0 for one number per row, or the numbers")
            _check_storage(column)

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Return the columns by their names, in order."""
        return {column.name: column for column in self.columns}

    @property
    def stored(self) -> tuple[Column, ...]:
        """Return all columns with the offsets before them, as they are stored."""
        return (*POINTERS, *self.columns)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a column of this name."""
        return name in self.by_name
