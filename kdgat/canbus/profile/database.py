"""Names of a car's messages and signals, from a database that describes it: DBC, and what else canmatrix reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kdgat.canbus.messages import RecordingError
from kdgat.canbus.readers.detect import load_library


@dataclass(frozen=True)
class Signal:
    """One signal of a message."""

    name: str
    bits: frozenset[int]  # of the payload, from the highest of the first byte


@dataclass(frozen=True)
class Database:
    """What messages and their signals are called, by identifier; 11 and 29 bits with the same number are one."""

    messages: Mapping[int, str]
    signals: Mapping[int, tuple[Signal, ...]]

    @classmethod
    def read(cls, path: Path) -> Database:
        """Read a file; RecordingError says what is wrong with it, and the fix."""
        if not path.is_file():
            raise RecordingError(path, "is no file; name a database, as car.dbc")
        formats = load_library("canmatrix.formats", path, "a database of signals, which canmatrix reads")
        logging.getLogger("canmatrix").setLevel(logging.ERROR)  # it warns of what concerns no names
        try:
            clusters = formats.loadp(str(path))
        except Exception as error:  # canmatrix raises whatever a damaged line leads it to
            raise RecordingError(path, f"is no database that canmatrix reads ({error}); export it as DBC") from error
        frames = [frame for matrix in (clusters or {}).values() for frame in matrix.frames]
        if not frames:
            raise RecordingError(path, "describes no message; export it as DBC")
        return cls(
            {frame.arbitration_id.id: frame.name for frame in frames},
            {frame.arbitration_id.id: tuple(_signals(frame)) for frame in frames},
        )

    def message(self, identifier: int) -> str:
        """Return what a message is called; empty if the database does not have it."""
        return self.messages.get(identifier, "")

    def signals_in(self, identifier: int, bits: frozenset[int]) -> tuple[str, ...]:
        """Return what the signals of a message are called that lie in some of these bits."""
        return tuple(signal.name for signal in self.signals.get(identifier, ()) if signal.bits & bits)


def _signals(frame: Any) -> Iterable[Signal]:
    for signal in frame.signals:
        bits = range(signal.start_bit, signal.start_bit + signal.size)
        if signal.is_little_endian:  # counted from the lowest bit of each byte
            yield Signal(signal.name, frozenset(8 * (bit // 8) + 7 - bit % 8 for bit in bits))
        else:
            yield Signal(signal.name, frozenset(bits))
