"""Look at recordings before anything trains on them: size, ids, attacks, damage, copies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, Final

import numpy as np

from kdgat.canbus.catalog import DatasetEntry, RecordingPlace, list_places, no_scenario
from kdgat.canbus.findings import Findings
from kdgat.canbus.folders import FolderContent, survey_folder
from kdgat.canbus.look import Look
from kdgat.canbus.messages import BadRow, Messages, ReadLimits, ReadOptions, RecordingError, list_passed_over
from kdgat.canbus.names import recording_name
from kdgat.canbus.stream import StreamStatus, stream_labelled

UNLABELLED_ATTACKS = ("suppress", "masquerade")
"""Attacks whose recordings often carry no positive label, because nothing was injected or marked."""
_SPOOLED_BYTES: Final = 1 << 22


@dataclass(slots=True)
class RecordingInspection:
    """Hold what one recording shows; counts are zero where it cannot be read."""

    path: Path
    scenario: str
    name: str
    role: str = ""
    vehicle: str | None = None
    num_messages: int = 0
    num_identifiers: int = 0
    duration_s: float = 0.0
    num_attacks: int = 0
    labelled: bool = True
    num_backward: int = 0
    num_bad_rows: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)
    content_hash: str = ""
    findings: Findings = field(default_factory=Findings)
    usable: bool = True
    problem: str = ""  # that nothing can be judged in it, and the fix
    notes: list[str] = field(default_factory=list)

    @property
    def attack_share(self) -> float | None:
        """Share of messages labelled as attack, None without labels."""
        return self.num_attacks / self.num_messages if self.labelled and self.num_messages else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        findings = self.findings.model_dump(mode="json")
        return {**asdict(self), "path": str(self.path), "attack_share": self.attack_share, "findings": findings}


def inspect_file(
    path: Path, limits: ReadLimits | None = None, channel: str | None = None, options: ReadOptions | None = None
) -> RecordingInspection:
    """Inspect one recording outside any dataset, one channel of it if it names several."""
    scenario, name = recording_name(path)
    return _inspect(RecordingPlace(path, scenario, name), limits or ReadLimits(), channel, options)


def inspect_dataset(
    entry: DatasetEntry,
    data_root: Path | str,
    on_recording: Callable[[RecordingInspection], None] | None = None,
    content: FolderContent | None = None,
) -> list[RecordingInspection]:
    """Inspect every recording of a dataset and mark copies. An unusable one is marked, not raised.

    `content` is what its folder is known to hold.
    """
    inspections = []
    folder = entry.folder_in(data_root)
    for place in list_places(content or survey_folder(folder), folder):
        inspection = _inspect(place, ReadLimits())
        if not place.scenario:
            inspection.usable = False
            inspection.notes.append(no_scenario(place.path, folder))
        inspection.role = entry.role_of(place.scenario)
        inspection.vehicle = entry.vehicle_of(place.name)
        inspections.append(inspection)
        if on_recording is not None:
            on_recording(inspection)
    _mark_copies(inspections)
    return inspections


def _inspect(
    place: RecordingPlace, limits: ReadLimits, channel: str | None = None, options: ReadOptions | None = None
) -> RecordingInspection:
    # Whatever is readable is shown; a note states whether it would be refused.
    all_rows = limits.model_copy(update={"max_bad_fraction": 1.0})
    content = ContentHash()
    try:
        inspector = Inspector(place, options)
        with stream_labelled(
            place.path, scenario=place.scenario, limits=all_rows, channel=channel, options=options
        ) as stream:
            for chunk in inspector.watched(stream):
                content.add(chunk)
        inspection = inspector.finish(stream.status)
    except (RecordingError, OSError) as error:  # OSError: one that may not be read
        problem = error.problem if isinstance(error, RecordingError) else str(error)
        return RecordingInspection(place.path, place.scenario, place.name, usable=False, notes=[problem])
    inspection.content_hash = content.hexdigest()
    bad_share = inspection.num_bad_rows / (inspection.num_bad_rows + inspection.num_messages)
    if bad_share > limits.max_bad_fraction:
        inspection.usable = False
        inspection.notes.insert(0, f"{bad_share:.2%} of the rows are bad: refused above {limits.max_bad_fraction:.2%}")
    return inspection


class Inspector:
    """Inspect a recording that somebody reads, in chunks."""

    def __init__(self, place: RecordingPlace, options: ReadOptions | None = None) -> None:
        """Begin; `place` says what is read, and `options` how."""
        self._options = options
        self.inspection = RecordingInspection(place.path, place.scenario, place.name)
        self._look = Look()
        self._labels_from = ""
        self._earliest, self._latest, self._last = np.inf, -np.inf, -np.inf

    def watched(self, chunks: Iterable[Messages]) -> Iterator[Messages]:
        """Hand on chunks of messages, at least one each, after the look at them."""
        inspection = self.inspection
        for chunk in self._look.watched(chunks):
            inspection.num_messages += len(chunk)
            inspection.num_attacks += chunk.num_attacks
            inspection.labelled = chunk.labelled
            self._labels_from = chunk.labels_from
            inspection.num_backward += chunk.num_backward + int(chunk.timestamp[0] < self._last)
            self._earliest = min(self._earliest, float(chunk.timestamp.min()))
            self._latest = max(self._latest, float(chunk.timestamp.max()))
            self._last = float(chunk.timestamp[-1])
            yield chunk

    def finish(self, status: StreamStatus) -> RecordingInspection:
        """Return what all of them have shown."""
        inspection, findings = self.inspection, self._look.findings()
        inspection.findings = findings
        inspection.num_identifiers = findings.num_identifiers
        inspection.duration_s = self._latest - self._earliest if inspection.num_messages else 0.0
        inspection.num_bad_rows = status.num_bad_rows
        inspection.bad_rows = status.bad_rows
        inspection.problem = findings.problem(self._options)
        inspection.usable = not inspection.problem
        inspection.notes += [inspection.problem] if inspection.problem else findings.notes()
        inspection.notes += [f"not read: {what}" for what in list_passed_over(status.passed_over)]
        if not inspection.labelled:
            inspection.notes.append("no labels")
        elif self._labels_from:
            inspection.notes.append(f"labels: {self._labels_from}")
        if (
            inspection.labelled
            and not inspection.num_attacks
            and any(word in inspection.name.lower() for word in UNLABELLED_ATTACKS)
        ):
            inspection.notes.append("named after an attack, but every label is 0")
        return inspection


class ContentHash:
    """`Messages.content_hash` of a recording in pieces: columns that come after the first one wait in a file."""

    def __init__(self) -> None:
        """Begin."""
        self._digest = hashlib.sha256()
        self._waiting: list[IO[bytes]] = [SpooledTemporaryFile(_SPOOLED_BYTES) for _ in range(3)]  # noqa: SIM115

    def add(self, messages: Messages) -> None:
        """Add the next messages."""
        self._digest.update(np.ascontiguousarray(messages.timestamp).data)
        columns = (messages.identifier, messages.payload, messages.length)
        for file, column in zip(self._waiting, columns, strict=True):
            file.write(np.ascontiguousarray(column).data)

    def hexdigest(self) -> str:
        """Return 16 hex digits; nothing can be added afterwards."""
        for file in self._waiting:
            file.seek(0)
            while block := file.read(_SPOOLED_BYTES):
                self._digest.update(block)
            file.close()
        return self._digest.hexdigest()[:16]


def _mark_copies(inspections: Sequence[RecordingInspection]) -> None:
    first: dict[str, RecordingInspection] = {}
    for inspection in inspections:
        if inspection.content_hash:
            original = first.setdefault(inspection.content_hash, inspection)
            if original is not inspection:
                inspection.notes.append(f"same messages as {original.scenario}/{original.name}")
