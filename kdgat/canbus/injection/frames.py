"""Frames on a virtual bus, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Frames:
    """Frames before arbitration, or traffic after it, as columns of equal length."""

    time: NDArray[np.float64]
    identifier: NDArray[np.uint32]
    payload: NDArray[np.uint8]  # [M, 8]
    length: NDArray[np.uint8]
    label: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.time)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Frames:
        """Select rows."""
        return Frames(
            self.time[rows], self.identifier[rows], self.payload[rows], self.length[rows], self.label[rows]
        )  # fmt: skip

    @staticmethod
    def join(parts: Sequence[Frames]) -> Frames:
        """Merge several sets of frames by time; frames of equal time keep the order of the parts."""
        time = np.concatenate([part.time for part in parts])
        order = np.argsort(time, kind="stable")
        return Frames(
            time[order],
            np.concatenate([part.identifier for part in parts])[order],
            np.concatenate([part.payload for part in parts])[order],
            np.concatenate([part.length for part in parts])[order],
            np.concatenate([part.label for part in parts])[order],
        )
