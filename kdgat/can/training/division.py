"""How a training recording is divided: its first part trains, its last validates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kdgat.canbus.features import TRAIN

if TYPE_CHECKING:
    from kdgat.can.config import CanConfig
    from kdgat.can.kinds import PrepareConfig
    from kdgat.canbus import WindowConfig
    from kdgat.graphs import GraphColumns


@dataclass(frozen=True)
class Division:
    """Which messages of a recording train and which validate; those between are the gap.

    No message is in both: windows that reach over the border, and `gap` strides after it, belong to neither.
    """

    training_end: int  # messages before it train
    validation_begin: int  # messages from it on validate

    @classmethod
    def of(cls, num_messages: int, config: PrepareConfig | CanConfig) -> Division:
        """Give the first part of a recording to training, its last to validation."""
        border = int(num_messages * (1.0 - config.data.validation_fraction))
        return cls(border, border + config.data.gap * config.windows.stride)

    def windows(self, graphs: GraphColumns, store: str) -> NDArray[np.intp]:
        """Return which windows of the recording train, or validate."""
        if store == TRAIN:
            return np.flatnonzero(graphs["first_message"] + graphs["message_count"] <= self.training_end)
        return np.flatnonzero(graphs["first_message"] >= self.validation_begin)

    def has_windows(self, num_messages: int, windows: WindowConfig) -> bool:
        """Tell whether a recording of so many messages has a window that trains, and one that validates."""
        last = (num_messages - windows.size) // windows.stride * windows.stride  # where the last window begins
        return windows.size <= self.training_end and last >= self.validation_begin
