"""Rows of features of which only the values are kept that are not what they usually are, each as a float16.

Many features say nothing of most rows: they are at rest, or the maximum of one value is its mean. So a row is a bit for
each feature, and the values whose bits are set. Packing loses nothing but what a float16 cannot hold, and refuses to
lose that: whoever makes features rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError

BLOCK_ROWS: Final = 64
MAX_FEATURES: Final = 511  # so that the values of a block are counted in 16 bits
_ROWS_AT_ONCE: Final = 4096  # unpacked, so that what is computed on the way stays small
_ROWS_CHECKED: Final = 1 << 20  # at once


@dataclass(frozen=True, repr=False)
class Packing:
    """State what each of F features usually is, so that a store keeps only the values that are something else.

    Attributes:
        same_as: [F] the place of the feature whose value it usually has, which is then one with its own place; its own
            place: usually it is at rest.
        rest: [F] the value at rest; of no meaning for a feature that is usually the same as another.
    """

    same_as: tuple[int, ...]
    rest: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse places that are none, and chains of them."""
        num = len(self.same_as)
        if len(self.rest) != num or not 0 < num <= MAX_FEATURES:
            raise UserError(
                f"packing: {num} places and {len(self.rest)} values; give one each for 1 to {MAX_FEATURES} features"
            )
        if any(float(np.float16(value)) != value for value in self.rest):
            raise UserError("packing: a value at rest is no float16; give one that is")
        for feature, other in enumerate(self.same_as):
            if not 0 <= other < num or self.same_as[other] != other:
                raise UserError(
                    f"packing: feature {feature} is usually the same as {other}, which must be one of {num} features "
                    "and usually at rest"
                )

    @staticmethod
    def at_zero(num_features: int) -> Packing:
        """Return the packing of features that are usually 0."""
        return Packing(tuple(range(num_features)), (0.0,) * num_features)

    def __repr__(self) -> str:
        """Say how many features there are, not each of them."""
        return f"Packing(of {len(self.rest)} features)"


class Packed(NamedTuple):
    """Some rows, packed."""

    mask: NDArray[np.uint8]  # [N, bytes of F bits] which values are kept
    counts: NDArray[np.int64]  # [N] how many
    values: NDArray[np.float16]  # [V]


def num_mask_bytes(num_features: int) -> int:
    """Return the bytes that hold a bit for each feature."""
    return (num_features + 7) // 8


def narrowed(rows: NDArray[Any], narrow: str, name: str) -> NDArray[Any]:
    """Return values in a narrower type. Raises UserError, naming column and value, where that would change one."""
    with np.errstate(over="ignore"):
        kept = rows.astype(narrow)
    changed = kept != rows
    if rows.dtype.kind == "f" and changed.any():
        changed &= ~np.isnan(rows)  # refused elsewhere, in words of its own
    if changed.any():
        place = tuple(np.argwhere(changed)[0].tolist())
        where = f"feature {place[-1]}" if rows.ndim > 1 else f"row {place[0]}"
        reason = "round it where it is made" if np.isfinite(kept[place]) else "it is beyond the largest"
        if rows.dtype.kind != "f":
            reason = "state a wider type"
        raise UserError(f"{name}: {where} holds {rows[place]!s}, which is no {narrow}: {reason}")
    return kept


def pack(rows: NDArray[np.float32], packing: Packing, name: str) -> Packed:
    """Pack rows [N, F] of a column. Raises UserError for a value that is no float16."""
    half = narrowed(rows, "float16", name)
    same_as = np.array(packing.same_as)
    usual = half[:, same_as]
    at_rest = same_as == np.arange(len(same_as))
    usual[:, at_rest] = np.array(packing.rest, np.float16)[at_rest]
    is_kept = half.view(np.uint16) != usual.view(np.uint16)  # by their bits: -0 is not 0
    mask = np.packbits(is_kept, axis=1, bitorder="little")
    return Packed(mask, np.count_nonzero(is_kept, axis=1), half[is_kept])


class PackedRows:
    """Packed rows of a file that appear as float32 [N, F] where they are read, and stay packed otherwise."""

    dtype: Final = np.dtype(np.float32)
    ndim: Final = 2

    def __init__(
        self,
        packing: Packing,
        mask: NDArray[np.uint8],
        begin: NDArray[np.int16],
        block: NDArray[np.int64],
        values: NDArray[np.float16],
    ) -> None:
        """Hold the arrays of a file.

        Args:
            packing: what the F features usually are.
            mask: [N, bytes of F bits].
            begin: [N] place of each row's first value after that of its block's first row.
            block: [ceil(N / BLOCK_ROWS)] place of the first value of each block of rows.
            values: [V].
        """
        self.packing, self.mask, self.begin, self.block, self.values = packing, mask, begin, block, values
        self._same_as = np.array(packing.same_as)
        self._dependent = np.flatnonzero(self._same_as != np.arange(len(self._same_as)))
        self._rest = np.array(packing.rest, np.float32)
        self._last_bits = np.uint8(0xFF >> (-len(packing.rest) % 8))  # of a mask's last byte, those of features

    @property
    def shape(self) -> tuple[int, int]:
        """Return (N, F)."""
        return len(self.mask), len(self._rest)

    @property
    def size(self) -> int:
        """Return N * F."""
        return len(self.mask) * len(self._rest)

    @property
    def nbytes(self) -> int:
        """Return the memory of the packed rows."""
        return sum(part.nbytes for part in (self.mask, self.begin, self.block, self.values))

    def __len__(self) -> int:
        """Return N."""
        return len(self.mask)

    def __getitem__(self, key: Any) -> Any:
        """Return rows as an array would: by a slice, places, a mask or one place; after a comma, of some features."""
        rows, *features = key if isinstance(key, tuple) else (key,)
        chosen = _places(rows, len(self))
        found = self._read(chosen.reshape(-1), *features)
        return found.reshape((*chosen.shape, *found.shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all rows, unpacked."""
        if copy is False:
            raise ValueError("packed rows cannot be an array without a copy")
        return self[:].astype(dtype or self.dtype, copy=False)

    def take(self, indices: NDArray[Any], axis: int = 0, **_: Any) -> NDArray[np.float32]:
        """Return the rows `indices`, as np.take asks for them."""
        if axis != 0:
            raise ValueError(f"packed rows are taken along axis 0, not {axis}")
        return self._read(_integers(np.asarray(indices), len(self)))

    def is_finite(self) -> bool:
        """Say whether no value is infinite or none."""
        return bool(np.isfinite(self.values).all())

    def counts(self, rows: slice = slice(None)) -> NDArray[np.int64]:
        """Return how many values each row keeps, [N], or those of a slice; bits of no feature do not count."""
        mask = self.mask[rows]
        counts = np.bitwise_count(mask[:, :-1]).sum(axis=1, dtype=np.int64)
        return counts + np.bitwise_count(mask[:, -1] & self._last_bits)

    def check_blocks(self, name: str) -> None:
        """Refuse places of blocks that cannot be; touches these alone, a 64th of the rows. Raises UserError."""
        if not len(self):
            if len(self.values):
                raise UserError(f"{name} has {len(self.values)} values, its rows 0")
            return
        if self.block[0] != 0:
            raise UserError(f"{name}_block begins with {self.block[0]}, expected 0")
        sizes = np.diff(self.block, append=len(self.values))
        most = BLOCK_ROWS * self.shape[1]
        outside = np.flatnonzero((sizes < 0) | (sizes > most))
        if len(outside):
            place = int(outside[0])
            raise UserError(f"{name}_block: block {place} has {sizes[place]} values, expected 0 to {most}")
        found = int(self.block[-1]) + int(self.begin[-1]) + int(self.counts(slice(-1, None))[0])
        if found != len(self.values):
            raise UserError(f"{name} has {len(self.values)} values, its rows {found}")

    def check(self, name: str) -> None:
        """Read where each row's values are, and refuse what its bits do not say. Raises UserError."""
        self.check_blocks(name)
        expected = 0
        for start in range(0, len(self), _ROWS_CHECKED):
            rows = slice(start, min(start + _ROWS_CHECKED, len(self)))
            if (self.mask[rows, -1] & ~self._last_bits).any():
                row = start + int((self.mask[rows, -1] & ~self._last_bits).argmax())
                raise UserError(f"{name}_mask: row {row} sets a bit beyond its {self.shape[1]} features")
            counts = self.counts(rows)
            ends = expected + np.cumsum(counts)
            found = self.block[np.arange(rows.start, rows.stop) // BLOCK_ROWS] + self.begin[rows]
            wrong = np.flatnonzero(found != ends - counts)
            if len(wrong):
                row = int(wrong[0])
                raise UserError(
                    f"{name}_begin: the values of row {start + row} begin at {found[row]}, expected "
                    f"{ends[row] - counts[row]}"
                )
            expected = int(ends[-1])

    def _read(self, places: NDArray[np.int64], features: Any = None) -> NDArray[np.float32]:
        """Return rows, of some features where they are told: then all of them are there of few rows at a time only."""
        width = self.shape[1:] if features is None else np.arange(self.shape[1])[features].shape
        out = np.empty((len(places), *width), np.float32)
        for start in range(0, len(places), _ROWS_AT_ONCE):
            piece = places[start : start + _ROWS_AT_ONCE]
            kept = out[start : start + len(piece)]
            if features is None:
                self._unpack(piece, kept)
                continue
            unpacked = np.empty((len(piece), self.shape[1]), np.float32)
            self._unpack(piece, unpacked)
            kept[:] = unpacked[:, features]
        return out

    def _unpack(self, rows: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        is_kept = np.unpackbits(self.mask[rows], axis=1, count=self.shape[1], bitorder="little").view(np.bool_)
        out[:] = self._rest
        if len(self.values):
            place = np.cumsum(is_kept, axis=1, dtype=np.int64)
            place += (self.block[rows // BLOCK_ROWS] + self.begin[rows] - 1)[:, None]
            # What lies before a row's first value is looked up, too, and not used.
            np.copyto(out, self.values.take(place, mode="clip"), where=is_kept)
        dependent = out[:, self._same_as[self._dependent]]
        out[:, self._dependent] = np.where(is_kept[:, self._dependent], out[:, self._dependent], dependent)


def _places(rows: Any, num_rows: int) -> NDArray[np.int64]:
    """Return the places that an array of so many rows would give; what is made on the way is as long as they are."""
    if rows is Ellipsis:
        rows = slice(None)
    if isinstance(rows, slice):
        return np.arange(*rows.indices(num_rows))
    rows = np.asarray(rows)
    if rows.dtype != np.bool_:
        return _integers(rows, num_rows)
    if rows.shape != (num_rows,):
        raise IndexError(f"packed rows: a mask of shape {rows.shape} for {num_rows} rows; give one value for each")
    return np.flatnonzero(rows)


def _integers(places: NDArray[Any], num_rows: int) -> NDArray[np.int64]:
    """Return places, negative ones counted from the end; IndexError where there is no such row."""
    if places.dtype.kind not in "iu" and places.size:  # an empty list is float64
        raise IndexError(f"packed rows: places are {places.dtype}; give integers")
    if places.size and not -num_rows <= places.min() <= places.max() < num_rows:
        raise IndexError(f"packed rows: {places.min()}..{places.max()} asked for, 0..{num_rows - 1} exist")
    places = places.astype(np.int64, copy=False)
    return np.where(places < 0, places + num_rows, places)
