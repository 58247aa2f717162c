"""Packed rows of a store as tensors, unpacked into batches on the device that holds them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kdgat.graphs.packing import BLOCK_ROWS, PackedRows


@dataclass(frozen=True, eq=False)
class PackedTensor:
    """Hold packed rows [N, F] on one device; on the CPU they share the memory of the file's pages."""

    mask: Tensor  # [N, bytes of F bits] uint8
    begin: Tensor  # [N] int16
    block: Tensor  # [ceil(N / BLOCK_ROWS)] int64
    values: Tensor  # [V] float16
    rest: Tensor  # [F] float32
    same_as: Tensor  # [F] int64
    # Of each byte, one uint8 for each of its bits, lowest first, in the bytes of an int64: looked up at once.
    is_kept: Tensor  # [256] int64: 255 where the bit is set
    ranks: Tensor  # [256] int64: how many are set up to this one

    @staticmethod
    def of(rows: PackedRows) -> PackedTensor:
        """Wrap packed rows, without a copy."""
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        return PackedTensor(
            mask=wrap(rows.mask),
            begin=wrap(rows.begin),
            block=wrap(rows.block),
            values=wrap(rows.values if len(rows.values) else np.zeros(1, np.float16)),
            rest=torch.tensor(rows.packing.rest, dtype=torch.float32),
            same_as=torch.tensor(rows.packing.same_as),
            is_kept=torch.from_numpy((bits * np.uint8(255)).view(np.int64).reshape(-1)),
            ranks=torch.from_numpy(np.cumsum(bits, axis=1, dtype=np.uint8).view(np.int64).reshape(-1)),
        )

    @property
    def device(self) -> torch.device:
        """Return the device that holds the rows."""
        return self.mask.device

    @property
    def nbytes(self) -> int:
        """Return the memory of the packed rows."""
        return sum(tensor.nbytes for tensor in (self.mask, self.begin, self.block, self.values))

    def to(self, device: str | torch.device) -> PackedTensor:
        """Return the same rows on a device."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: one.to(device) for name, one in tensors.items() if isinstance(one, Tensor)})

    def index_select(self, axis: int, rows: Tensor) -> Tensor:
        """Return rows [B, F] as float32, those that `PackedRows.take` returns."""
        if axis != 0:
            raise ValueError(f"packed rows are selected along axis 0, not {axis}")
        mask = self.mask.index_select(0, rows)  # [B, bytes]
        num, num_bits, num_features = len(mask), 8 * mask.shape[1], len(self.rest)
        byte = mask.flatten().int()
        # As integers of all ones or zeros: choosing by them takes a third of the time that torch.where takes.
        is_kept = (
            self.is_kept.index_select(0, byte).view(torch.int8).view(num, num_bits)[:, :num_features].int()
        )  # [B, F]
        ranks = self.ranks.index_select(0, byte).view(torch.uint8).view(num, num_bits // 8, 8)  # [B, bytes, 8]
        whole = torch.int32 if len(self.values) < 2**31 else torch.int64
        counts = ranks[:, :, 7].to(whole)
        before = self.block[rows // BLOCK_ROWS] + self.begin.index_select(0, rows) - 1  # the row's first value
        place = ranks + (before.to(whole)[:, None] + counts.cumsum(1, dtype=whole) - counts)[:, :, None]
        # What lies before a row's first value is looked up, too, and not used.
        place = place.flatten(1)[:, :num_features].clamp(0, len(self.values) - 1)
        values = self.values.index_select(0, place.flatten()).float().view(torch.int32).view(num, num_features)
        rest = self.rest.view(torch.int32)
        found = rest + ((values - rest) & is_kept)  # bits of floats: what overflows comes back
        # Of floats, columns are selected in a seventh of the time that integers take.
        usual = found.view(torch.float32).index_select(1, self.same_as).view(torch.int32)
        return (usual + ((found - usual) & is_kept)).view(torch.float32)


def wrap(array: NDArray[Any]) -> Tensor:
    """Return a tensor of an array's memory, which may be read-only: a batch only ever reads it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))
