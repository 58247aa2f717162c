"""What a profile knows of one identifier: its times, its payloads, and how it is judged by them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kdgat.base import Config
from kdgat.canbus.features.suspicion import habits as habit
from kdgat.canbus.features.suspicion.habits import NUM_SPANS
from kdgat.canbus.features.suspicion.known import FIRST_BIT, KIND, LOWEST, MODULUS, MOST_FIELDS, NUM_BITS, STEP
from kdgat.canbus.profile.checksum import Checksum
from kdgat.canbus.profile.fields import NUM_PAYLOAD_BITS, PayloadField

MOST_MESSAGES: Final = 1 << 48
_EVEN, _TIMED_S, _FEWEST_TIMED = 0.95, 0.11, 60
_EXPECTED_S, _EXPECTED_LONGEST_S = 1.6, 0.25
_FEWEST_ALWAYS = 500  # changes of a payload that always changes
_FEWEST_LASTING = 500  # messages before it is known how many bits change in four of them
_FEWEST_CHANGES = 100  # before it is known how many bits change at once


class IdentifierProfile(Config):
    """What is known of one identifier."""

    num_messages: int = Field(ge=1, le=MOST_MESSAGES)
    first_s: float = Field(description="of the driving that was learned from, before it came first")
    first_of_drive_s: float = Field(description="the latest that it came first in a drive")
    num_drives_absent: int = Field(default=0, ge=0)
    usual_s: float = Field(ge=0.0, description="median interval")
    evenness: float = Field(ge=0.0, le=1.0, description="share of intervals near that")
    longest_s: float = Field(ge=0.0)
    shortest_s: list[float] = Field(
        max_length=NUM_SPANS, description="in which 1, 2, 4, 8, 16 and 32 intervals ever passed"
    )
    num_changes: int = Field(ge=0, le=MOST_MESSAGES, description="messages whose payload differs from the one before")
    num_still: int = Field(
        default=MOST_MESSAGES, ge=0, le=MOST_MESSAGES, description="messages whose payload is that of the one before"
    )
    most_changed: int = Field(ge=0, le=64, description="bits from one message to the next")
    most_lasting: int = Field(ge=0, le=64, description="bits in each of four messages in a row")
    checksum: Checksum | None = None
    unruly: int = Field(default=0, ge=0, lt=1 << NUM_PAYLOAD_BITS, description="bits that moved, of no field")
    fields: list[PayloadField] = Field(default=[], max_length=MOST_FIELDS)

    @property
    def is_timed(self) -> bool:
        """Return whether it comes so evenly, and so often, that its times are known before its first message."""
        return self.evenness >= _EVEN and 0.0 < self.usual_s <= _TIMED_S and self.num_messages >= _FEWEST_TIMED

    def is_near(self, interval_s: float) -> bool:
        """Return whether an interval, usual of a log, is near the one that is usual here."""
        return abs(interval_s - self.usual_s) <= habit.NEAR * max(interval_s, self.usual_s) + habit.NEAR_S

    @property
    def is_expected(self) -> bool:
        """Return whether it comes evenly from the beginning of each drive on."""
        is_there = self.first_of_drive_s <= _EXPECTED_S and self.num_drives_absent == 0
        return is_there and self.is_timed and self.longest_s <= _EXPECTED_LONGEST_S

    @property
    def always_changes(self) -> bool:
        """Return whether no payload is that of the message before, and that is no chance."""
        return self.num_still == 0 and self.num_changes >= _FEWEST_ALWAYS

    @property
    def checksum_known(self) -> tuple[int, int, int]:
        """Return kind, residual and bytes of the checksum; a kind of -1 if there is none."""
        one = self.checksum
        return (-1, 0, 0) if one is None else (one.kind, one.residual, one.num_bytes)

    @property
    def most_changed_known(self) -> int:
        """Return how many bits ever changed at once; all, as long as it is not known."""
        return self.most_changed if self.num_changes >= _FEWEST_CHANGES else NUM_PAYLOAD_BITS

    def fill(self, habits: NDArray[np.float64], curve: NDArray[np.float64], fields: NDArray[np.int64]) -> None:
        """Fill the rows of `Known` that are of this identifier."""
        habits[habit.LONGEST] = habits[habit.LONGEST_ONCE] = self.longest_s
        habits[habit.MOST_BITS] = self.most_lasting if self.num_messages >= _FEWEST_LASTING else NUM_PAYLOAD_BITS
        habits[habit.IS_RECALLED], habits[habit.IS_UNEVEN] = 1.0, self.evenness <= habit.EVEN
        if self.is_timed:
            habits[habit.LEARNED], habits[habit.USUAL] = self.num_messages - 1, self.usual_s
            habits[habit.EVENNESS] = self.evenness
        curve[: len(self.shortest_s)] = self.shortest_s
        for place, field in enumerate(self.fields):
            fields[place, FIRST_BIT], fields[place, NUM_BITS] = field.first_bit, field.num_bits
            fields[place, KIND], fields[place, STEP] = field.number_of_kind, field.step
            fields[place, LOWEST] = 0 if field.modulus is None else field.lowest
            fields[place, MODULUS] = field.values_in_turn
