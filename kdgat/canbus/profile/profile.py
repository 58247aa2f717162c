"""A profile of one vehicle, on one recorder: what minutes of it without attacks have shown, as one file."""

from __future__ import annotations

from math import inf, isfinite, log
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, JsonValue, PlainSerializer

from kdgat.base import Config, UserError, write_json_atomically
from kdgat.base.kept import read_kept
from kdgat.canbus.features.bus_time import BusClock
from kdgat.canbus.features.suspicion.evidence import UNEXPECTED_HALF_S
from kdgat.canbus.features.suspicion.habits import NUM_HABITS, NUM_SPANS
from kdgat.canbus.features.suspicion.known import (
    MOST_FIELDS,
    NUM_FIELD_COLUMNS,
    Known,
)
from kdgat.canbus.profile.identifier import IdentifierProfile

FIX: Final = "make it with `kdgat profile`"
FITS_S: Final = 5.0  # of messages, by which it is seen whether a profile is of their vehicle
_LONG_S = 55.0  # from which on it says how many identifiers a profile may have missed:
_FEW, _MANY_TIMES = 8.0, 3.0  # so many messages, and this many times what came anew in its second half
_FEWEST_MESSAGES = 3  # of an identifier that is known: fewer, and it is no news only that it comes once in a while
_FREQUENT, _FEWEST_FREQUENT = 24, 5  # messages, and identifiers that have as many, that are compared with a log's:
_FITTING, _KNOWN = (
    0.8,
    0.6,
)  # shares of the profile's and of the log's that have to fit; the first of both where it has few


def _number(identifier: object) -> object:
    return int(identifier, 16) if isinstance(identifier, str) else identifier


def _hexadecimal(number: int) -> str:
    return f"{number:03X}"


Identifier = Annotated[
    int, BeforeValidator(_number), PlainSerializer(_hexadecimal, when_used="json"), Field(ge=0, lt=1 << 32)
]


class Drive(Config):
    """A recording that a profile was learned from."""

    name: str
    content_hash: str
    seconds: float = Field(ge=0.0)
    num_messages: int = Field(ge=0)
    num_alarms: int = Field(ge=0, description="of its identifiers' own habits")
    alarm_s: float = Field(ge=0.0)
    is_trusted: bool = Field(default=False, description="alarms are the vehicle's own, and were not left out")


class Profile(Config):
    """What is known of a vehicle."""

    schema_version: Literal[1] = 1
    drives: list[Drive] = Field(default=[])
    identifiers: dict[Identifier, IdentifierProfile] = Field(default={}, description="hexadecimal, as 1A0")
    networks: list[dict[str, JsonValue]] = Field(
        default=[], description="thresholds of trained networks on this vehicle, as `kdgat.can` reads them"
    )

    @property
    def seconds(self) -> float:
        """Return how much driving it was learned from."""
        return sum(drive.seconds for drive in self.drives)

    @classmethod
    def read(cls, path: Path) -> Profile:
        """Read a file; UserError says what is wrong with it, and the fix."""
        if not path.is_file():
            raise UserError(f"{path} is no file: {FIX}")
        content = path.read_bytes()
        if b'"operating_point"' in content and b'"drives"' not in content:
            raise UserError(
                f"{path} is a calibration, which is read no longer: learn the threshold, and the vehicle's habits, by "
                "`kdgat profile LOG... --out FILE --model RUN`"
            )
        return read_kept(cls, content, path, FIX)

    def write(self, path: Path) -> None:
        """Write it atomically."""
        write_json_atomically(path, self.model_dump(mode="json"))

    def known(self) -> Known:
        """Return it as identifiers are judged by it."""
        rows = sorted((number, one) for number, one in self.identifiers.items() if one.num_messages >= _FEWEST_MESSAGES)
        habits, curves = np.zeros((len(rows), NUM_HABITS)), np.full((len(rows), NUM_SPANS), np.inf)
        fields = np.zeros((len(rows), MOST_FIELDS, NUM_FIELD_COLUMNS), np.int64)
        for row, (_, one) in enumerate(rows):
            one.fill(habits[row], curves[row], fields[row])
        # In which 8 messages of one identifier ever came; kept as the mean interval of them.
        fastest = min((one.shortest_s[3] / 8.0 for _, one in rows if len(one.shortest_s) > 3), default=0.0)
        return Known(
            identifier=np.array([number for number, _ in rows], np.uint32),
            habits=habits,
            curves=curves,
            most_changed=np.array([one.most_changed_known for _, one in rows], np.int64),
            fields=fields,
            checksum=np.array([one.checksum_known for _, one in rows], np.int64).reshape(-1, 3),
            always_changes=np.array([one.always_changes for _, one in rows], np.bool_),
            is_expected=np.array([one.is_expected for _, one in rows], np.bool_),
            others=np.array([self.most_others, fastest if isfinite(self.most_others) else 0.0]),
        )

    def misfit(self, timestamp: NDArray[np.float64], identifier: NDArray[np.uint32]) -> str:
        """Say that messages [M] are of another vehicle or recorder than the profile's; empty if they may be of this.

        The first FITS_S alone are asked: attacks later on must not make it misfit. Of the identifiers that it expects
        to come often in that time nearly all have to, at their intervals; of those that come often it has to know most:
        an attacker who adds some must not make it misfit.
        """
        time = BusClock().read(np.ascontiguousarray(timestamp)).time
        is_asked = time <= time[:1] + FITS_S
        time, identifier = time[is_asked], identifier[is_asked]
        seconds = float(np.ptp(time)) if len(time) else 0.0
        usual_s = {}
        for number, count in zip(*np.unique(identifier, return_counts=True), strict=True):
            if count > _FREQUENT:
                usual_s[int(number)] = float(np.median(np.diff(time[identifier == number])))
        expected = [
            number for number, one in self.identifiers.items() if one.is_timed and seconds > _FREQUENT * one.usual_s
        ]
        num_fitting = sum(
            number in usual_s and self.identifiers[number].is_near(usual_s[number]) for number in expected
        )
        is_telling = len(expected) >= _FEWEST_FREQUENT
        needed = _KNOWN if is_telling else _FITTING
        num_known = sum(
            number in self.identifiers and (is_telling or self.identifiers[number].is_near(found_s))
            for number, found_s in usual_s.items()
        )
        if is_telling and num_fitting < _FITTING * len(expected):
            what = f"expects {len(expected)} identifiers at even intervals, and {num_fitting} of them come so"
        elif len(usual_s) >= _FEWEST_FREQUENT and num_known < needed * len(usual_s):
            what = f"knows {num_known} of the {len(usual_s)} identifiers that come often"
        else:
            return ""
        return (
            f"{what}: it is of another vehicle, another recorder, or another state of this one; leave it out, or make "
            "another"
        )

    @property
    def most_others(self) -> float:
        """Return how many messages of unknown identifiers within some seconds are no news; infinite: any number."""
        if self.seconds < _LONG_S:
            return inf
        late = sum(one.first_s > 0.5 * self.seconds for one in self.identifiers.values())
        return _FEW + _MANY_TIMES * late / (0.5 * self.seconds) * UNEXPECTED_HALF_S / log(2.0)
