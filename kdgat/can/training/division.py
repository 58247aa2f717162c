"""How training recordings are divided: the first part of each trains, its last validates; or vehicles do either."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError
from kdgat.canbus.features import TRAIN

if TYPE_CHECKING:
    from kdgat.can.config import CanConfig
    from kdgat.can.kinds import PrepareConfig
    from kdgat.can.sections import PreparedDataConfig
    from kdgat.canbus import WindowConfig
    from kdgat.graphs import GraphColumns

TRAIN_ROLE: Final = "train"
VALIDATION_ROLE: Final = "validation"
OF_VEHICLE: Final = "@"  # between the role of an input of `prepare` and the vehicle that it is of
FEWEST_VEHICLES: Final = 8  # of which two validate, by the default fraction: one is no sample of vehicles


@dataclass(frozen=True)
class VehicleDivision:
    """Which vehicles the training recordings are of, and which of them validate; none where that is not by vehicle."""

    known: frozenset[str]
    validating: frozenset[str]

    @classmethod
    def of(cls, vehicles: Iterable[str | None], data: PreparedDataConfig) -> VehicleDivision:
        """Draw them by the seed and their names, so that a further vehicle moves hardly any of the others.

        Raises:
            UserError: if they shall validate, and fewer than two are known.
        """
        known = frozenset(_written(vehicle) for vehicle in vehicles if vehicle)
        if data.validation == "vehicles" and len(known) < 2:
            raise UserError(
                f"data.validation=vehicles: the training recordings of {data.dataset} name {len(known)} vehicles, and "
                "one has to train and another to validate: name them in an entry of --catalog, or give "
                "data.validation=auto"
            )
        if data.validation != "vehicles" and len(known) < FEWEST_VEHICLES:
            return cls(frozenset(), frozenset())
        if data.validation == "recordings":
            return cls(known, frozenset())
        drawn = sorted(known, key=lambda name: hashlib.sha256(f"{data.seed} {name}".encode()).digest())
        count = min(max(1, round(data.validation_fraction * len(known))), len(known) - 1)
        return cls(known, frozenset(drawn[:count]))

    def role_of(self, role: str, vehicle: str | None) -> str:
        """Name the role of a recording as an input, with its vehicle where they are told apart."""
        if not vehicle or not self.known:
            return role
        vehicle = _written(vehicle)
        if role == TRAIN_ROLE and vehicle in self.validating:
            role = VALIDATION_ROLE
        return f"{role}{OF_VEHICLE}{vehicle}"

    def sentence(self) -> str:
        """Say which vehicles validate."""
        names = sorted(self.validating)
        return f"whole vehicles validate, and train nothing, {len(names)} of {len(self.known)}: {', '.join(names)}"


def _written(vehicle: str) -> str:
    """Return a vehicle as inputs name it: those that become one there are one before any is drawn."""
    return vehicle.replace("/", "-")


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

    @classmethod
    def whole(cls, num_messages: int, *, validates: bool) -> Division:
        """Give a whole recording to either."""
        return cls(0, 0) if validates else cls(num_messages, num_messages)

    def windows(self, graphs: GraphColumns, store: str) -> NDArray[np.intp]:
        """Return which windows of the recording train, or validate."""
        if store == TRAIN:
            return np.flatnonzero(graphs["first_message"] + graphs["message_count"] <= self.training_end)
        return np.flatnonzero(graphs["first_message"] >= self.validation_begin)

    def has_windows(self, num_messages: int, windows: WindowConfig) -> bool:
        """Tell whether a recording of so many messages has a window that trains, and one that validates."""
        last = (num_messages - windows.size) // windows.stride * windows.stride  # where the last window begins
        return windows.size <= self.training_end and last >= self.validation_begin
