"""Look at recordings before anything trains on them: size, ids, attacks, damage, copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kdgat.canbus.catalog import DatasetEntry, RecordingPlace, list_places, no_scenario
from kdgat.canbus.folders import FolderContent, survey_folder
from kdgat.canbus.logs import read_recording
from kdgat.canbus.messages import BadRow, ReadLimits, ReadOptions, RecordingError, list_passed_over
from kdgat.canbus.names import recording_name

UNLABELLED_ATTACKS = ("suppress", "masquerade")
"""Attacks whose recordings often carry no positive label, because nothing was injected or marked."""


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
    usable: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def attack_share(self) -> float | None:
        """Share of messages labelled as attack, None without labels."""
        return self.num_attacks / self.num_messages if self.labelled and self.num_messages else None

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `--json`."""
        return {**asdict(self), "path": str(self.path), "attack_share": self.attack_share}


def inspect_file(
    path: Path, limits: ReadLimits | None = None, channel: str | None = None, options: ReadOptions | None = None
) -> RecordingInspection:
    """Inspect one recording outside any dataset, one channel of it if it names several."""
    scenario, name = recording_name(path)
    return _inspect(RecordingPlace(path, scenario, name), limits or ReadLimits(), channel, options)


def inspect_dataset(
    entry: DatasetEntry,
    data_root: Path | str,
    limits: ReadLimits | None = None,
    on_recording: Callable[[RecordingInspection], None] | None = None,
    content: FolderContent | None = None,
) -> list[RecordingInspection]:
    """Inspect every recording of a dataset and mark copies. An unusable one is marked, not raised.

    `content` is what its folder is known to hold.
    """
    inspections = []
    folder = entry.folder_in(data_root)
    for place in list_places(content or survey_folder(folder), folder):
        inspection = _inspect(place, limits or ReadLimits())
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
    inspection = RecordingInspection(place.path, place.scenario, place.name)
    try:
        # Whatever is readable is shown; a note states whether it would be refused.
        messages = read_recording(
            place.path,
            scenario=place.scenario,
            limits=limits.model_copy(update={"max_bad_fraction": 1.0}),
            channel=channel,
            options=options,
        )
    except (RecordingError, OSError) as error:  # OSError: one that may not be read
        inspection.usable = False
        inspection.notes.append(error.problem if isinstance(error, RecordingError) else str(error))
        return inspection
    inspection.num_messages = len(messages)
    inspection.num_identifiers = len(np.unique(messages.identifier))
    inspection.duration_s = messages.duration_s
    inspection.num_attacks = messages.num_attacks
    inspection.labelled = messages.labelled
    inspection.num_backward = messages.num_backward
    inspection.num_bad_rows = messages.num_bad_rows
    inspection.bad_rows = messages.bad_rows
    inspection.content_hash = messages.content_hash()
    bad_share = messages.num_bad_rows / (messages.num_bad_rows + len(messages))
    if bad_share > limits.max_bad_fraction:
        inspection.usable = False
        inspection.notes.append(f"{bad_share:.2%} of the rows are bad: refused above {limits.max_bad_fraction:.2%}")
    inspection.notes += [f"not read: {what}" for what in list_passed_over(messages.passed_over)]
    if not messages.labelled:
        inspection.notes.append("no labels")
    elif messages.labels_from:
        inspection.notes.append(f"labels: {messages.labels_from}")
    if (
        messages.labelled
        and not messages.num_attacks
        and any(word in place.name.lower() for word in UNLABELLED_ATTACKS)
    ):
        inspection.notes.append("named after an attack, but every label is 0")
    return inspection


def _mark_copies(inspections: Sequence[RecordingInspection]) -> None:
    first: dict[str, RecordingInspection] = {}
    for inspection in inspections:
        if inspection.content_hash:
            original = first.setdefault(inspection.content_hash, inspection)
            if original is not inspection:
                inspection.notes.append(f"same messages as {original.scenario}/{original.name}")
