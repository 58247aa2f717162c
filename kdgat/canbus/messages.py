"""One recording of CAN traffic as column arrays, and what reading it found wrong."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kdgat.base import Config, UserError

MAX_IDENTIFIER = (1 << 29) - 1
"""Largest arbitration id: 29 bits, the extended frame format of CAN 2.0B."""
MAX_PAYLOAD_BYTES = 8
"""Bytes of a classic CAN data field; CAN FD carries more and is not read."""
CAN_FD_FRAME, ERROR_FRAME, OTHER_CHANNEL = "CAN FD frame", "error frame", "message of other channels"
"""Kinds of entries that are passed over."""
ECHO = "echoed message"
DIFFERENCES = "differences"
EMPTY_LINE = "line without a message"
UNTOLD = "unknown"
"""Kind of a campaign of which nobody told what was injected."""
SCENARIO_SEPARATOR = "__"
"""Stands between scenario and recording in `<scenario>__<recording>.parquet`."""


class RecordingError(UserError):
    """A recording that cannot be used; the text names the file and what to do.

    >>> from kdgat.canbus import read_recording
    >>> read_recording("nowhere.log")
    Traceback (most recent call last):
    kdgat.canbus.messages.RecordingError: nowhere.log: is no file; name one recording
    """

    def __init__(self, path: Path | str, problem: str) -> None:
        self.path = str(path)
        self.problem = problem
        super().__init__(f"{path}: {problem}")

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """Let the error leave its process."""
        return type(self), (self.path, self.problem)


@dataclass(frozen=True, slots=True)
class BadRow:
    """One row that is no CAN message: its line as an editor counts (for Parquet the row, from 1) and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class AttackCampaign:
    """A time in which an attacker is active: from its first effect on the bus to its last one."""

    kind: str
    begin_s: float  # on the clock of the recording's timestamps
    end_s: float
    identifiers: tuple[int, ...] = ()  # kept off the bus or spoken for; none where that is no part of the attack

    @property
    def silences(self) -> bool:
        """Return whether messages are missing, so that a window without a single injected one is attacked, too."""
        return bool(self.identifiers)


def list_passed_over(counts: Counter[str]) -> list[str]:
    """Name the frames, and what else is no message and no empty line, with how many there are, the most first.

    >>> list_passed_over(Counter({"CAN FD frame": 1200, "line without a message": 3, "error frame": 1}))
    ['1,200 CAN FD frames', '1 error frame']
    """
    kinds = [(kind, count) for kind, count in counts.most_common() if kind != EMPTY_LINE]
    return [f"{count:,} {kind if count == 1 else _plural(kind)}" for kind, count in kinds]


def _plural(kind: str) -> str:
    noun, space, rest = kind.partition(" of ")
    return f"{noun}s{space}{rest}"


class Stated(NamedTuple):
    """What is known of the numbers of a recording before a look at them."""

    unit: bool  # of times, by the format
    base: bool  # in which identifiers are written, by the format
    said: bool = False  # the unit of times, by a person


ALL_STATED: Final = Stated(unit=True, base=True)
UNITS_PER_S: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


class ReadLimits(Config):
    """How much damage in a recording is dropped with a report, and from where on the recording is refused.

    >>> ReadLimits(max_bad_fraction=0.1).max_listed_bad_rows
    20
    """

    max_bad_fraction: float = Field(default=0.01, ge=0.0, le=1.0)
    """Share of bad rows up to which they are dropped and counted; more refuses the recording."""
    max_listed_bad_rows: int = Field(default=20, ge=1)
    """Bad rows kept with line and reason; all of them are counted."""


class ReadOptions(Config):
    """What a person says of a recording that it does not say itself; all of it is left out where it does.

    >>> ReadOptions(time_unit="ms").payload
    'hexadecimal'
    """

    time_unit: Literal["s", "ms", "us", "ns", "differences"] | None = None
    """Of its stamps; `differences`: each counts the seconds from the row before, as candump -td writes them."""
    identifiers: Literal["hexadecimal", "decimal"] | None = None
    """How arbitration ids are written in a table, hexadecimal where nothing is said; 0x in front of one means so."""
    payload: Literal["hexadecimal", "decimal"] = "hexadecimal"
    """How bytes are written in a table."""
    drop_echo: bool = False
    """Leave out what comes a second time within a millisecond, as an interface returns what it sends."""
    label_column: str | None = None
    """The column of a table that says which messages are attacks."""
    attack_labels: tuple[str, ...] = ()
    """Words of the label column that are attacks; all others are benign."""


@dataclass(slots=True)
class Messages:
    """Hold the messages of one recording in file order, M of them.

    Payloads are padded with zeros behind `length`. Without a label column in the file `labelled` is False and
    `label` is zero.

    >>> messages = Messages(
    ...     timestamp=np.array([0.00, 0.01, 0.02]),
    ...     identifier=np.array([0x123, 0x7FF, 0x123], np.uint32),
    ...     payload=np.zeros((3, 8), np.uint8),
    ...     length=np.array([2, 0, 2], np.uint8),
    ...     label=np.array([0, 1, 0], np.uint8),
    ...     name="drive",
    ... )
    >>> len(messages), messages.num_attacks, messages.duration_s, len(messages.select(messages.label == 0))
    (3, 1, 0.02, 2)
    """

    timestamp: NDArray[np.float64]  # [M] seconds
    identifier: NDArray[np.uint32]  # [M] arbitration id, at most 29 bits
    payload: NDArray[np.uint8]  # [M, 8]
    length: NDArray[np.uint8]  # [M] bytes of the payload, 0 to 8
    label: NDArray[np.uint8]  # [M] 1 = attack
    name: str
    scenario: str = ""
    labelled: bool = True
    bad_rows: list[BadRow] = field(default_factory=list)  # the first ones only
    num_bad_rows: int = 0  # all of them
    campaigns: tuple[AttackCampaign, ...] = ()  # where they are known: of simulated and of virtual vehicles
    passed_over: Counter[str] = field(default_factory=Counter)  # by kind: no messages, and no damage
    labels_from: str = ""  # what told the labels, where the file does not hold them itself
    stated: Stated | None = None  # by the file that they were read from

    def __post_init__(self) -> None:
        num_messages = len(self.timestamp)
        assert self.payload.shape == (num_messages, MAX_PAYLOAD_BYTES), self.payload.shape
        assert len(self.identifier) == len(self.length) == len(self.label) == num_messages

    def __len__(self) -> int:
        return len(self.timestamp)

    @property
    def num_messages(self) -> int:
        """Count the messages, M."""
        return len(self.timestamp)

    @property
    def num_attacks(self) -> int:
        """Count the messages labelled as attack."""
        return int(np.count_nonzero(self.label))

    @property
    def num_backward(self) -> int:
        """Count the timestamp steps that run backwards."""
        return int(np.count_nonzero(np.diff(self.timestamp) < 0.0))

    @property
    def duration_s(self) -> float:
        """Seconds between the earliest and the latest timestamp."""
        return float(self.timestamp.max() - self.timestamp.min()) if len(self) else 0.0

    def select(self, rows: slice | NDArray[np.int64] | NDArray[np.bool_]) -> Messages:
        """Take some messages, in the order of `rows`; a slice copies nothing."""
        return Messages(
            timestamp=self.timestamp[rows],
            identifier=self.identifier[rows],
            payload=self.payload[rows],
            length=self.length[rows],
            label=self.label[rows],
            name=self.name,
            scenario=self.scenario,
            labelled=self.labelled,
            campaigns=self.campaigns,
            stated=self.stated,
        )

    def content_hash(self) -> str:
        """Hash the traffic itself (16 hex digits): times, ids, payloads, but neither labels, names nor files.

        Labels stay out so that a relabelled copy of a test recording is still recognised in the training folder.
        """
        digest = hashlib.sha256()
        for column in (self.timestamp, self.identifier, self.payload, self.length):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()[:16]
