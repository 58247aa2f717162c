"""Datasets by name, their recordings on disk, and which of them train and which test."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib import resources
from pathlib import Path
from typing import Literal, overload

import yaml
from pydantic import Field, field_validator

from kdgat.base import Config, UserError, validate_config
from kdgat.base.configuration import describe_yaml_error, read_yaml
from kdgat.base.files import read_utf8
from kdgat.canbus.folders import NO_SCENARIO, FolderContent, survey_folder
from kdgat.canbus.logs import read_recording
from kdgat.canbus.messages import SCENARIO_SEPARATOR, Messages, ReadLimits
from kdgat.canbus.names import RECORDING_SUFFIXES, recording_stem, require_dataset_name
from kdgat.canbus.near_copies import MOST_SHARED, Blocks, kept_blocks, shared_blocks

Role = Literal["train", "test"]
HELD_OUT = "held_out"
"""Scenario of the recordings that `split_roles` keeps out of training."""
VEHICLE_GROUP = "vehicle"
_STAMP = r"[-_ ]\d{4}-?\d\d-?\d\d([-_ t]\d\d[-:_]?\d\d([-:_]?\d\d)?)?"  # a date, and perhaps a time
FOLDER_PATTERN = (
    r"^(?![^/]*(attack|flood|fuzz|spoof|replay|suppress|masquerad|malfunction|inject|denial"
    r"|(?<![a-z])(dos(?![a-z])|gear|rpm|(ab)?normal|benign)))"
    r"(?!(drive|trip|log|can|candump|session|run|test|test_?drive|rec|recording|capture|trace|part|day)s?(?![a-z]))"
    r"(?!\d[-_ .:t\d]*(/|$))"  # a date, a time or a number alone
    rf"(?P<vehicle>[^/]+?)(({_STAMP})?/.*|{_STAMP}|[-_ ]\d+)$"
)
"""How people lay out many vehicles, `<vehicle>/<recording>`, `<vehicle>-<number>` or `<vehicle>-<date>`.

No names of attacks, nor of drives, nor dates: logs of one car are not many vehicles.
"""


class DatasetError(UserError):
    """A dataset that cannot be used; the text names the folder and what to do."""


class DatasetEntry(Config):
    """Describe one dataset: its folder, which scenarios train, which vehicles its names hold.

    >>> DatasetEntry.of_folder("mine").vehicle_of("honda-civic-2019-01")
    'honda-civic-2019'
    """

    name: str
    description: str = ""
    source: str = ""
    url: str = ""
    terms: str = ""
    folder: str | None = None
    train_scenarios: tuple[str, ...] = ("train_*",)
    windows: int | None = Field(None, ge=1)
    vehicles: dict[str, str] = Field(default_factory=dict)
    vehicle_pattern: str | None = None  # where there are too many to list

    @field_validator("vehicle_pattern")
    @classmethod
    def _require_a_group(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                groups = re.compile(pattern).groupindex
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
            if VEHICLE_GROUP not in groups:
                raise ValueError(f"{pattern!r} names no vehicle: write (?P<{VEHICLE_GROUP}>...) around what does")
        return pattern

    @field_validator("vehicles")
    @classmethod
    def _refuse_broken_patterns(cls, vehicles: dict[str, str]) -> dict[str, str]:
        for vehicle, pattern in vehicles.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} for vehicle {vehicle!r} is no regular expression: {error}") from error
        return vehicles

    def role_of(self, scenario: str) -> Role:
        """Return whether a scenario trains or tests."""
        return "train" if any(fnmatch(scenario, pattern) for pattern in self.train_scenarios) else "test"

    def vehicle_of(self, recording: str) -> str | None:
        """Name the vehicle of a recording, None where its name has none."""
        for vehicle, pattern in self.vehicles.items():
            if re.search(pattern, recording, re.IGNORECASE):
                return vehicle
        found = re.search(self.vehicle_pattern, recording, re.IGNORECASE) if self.vehicle_pattern else None
        # As files are named by hand, Kia and kia are one.
        return (found[VEHICLE_GROUP] or "").lower() or None if found else None

    @classmethod
    def of_folder(cls, name: str, description: str = "") -> DatasetEntry:
        """Return the entry of a folder that the catalog does not know."""
        return cls(name=name, description=description, vehicle_pattern=FOLDER_PATTERN)

    def folder_in(self, data_root: Path | str) -> Path:
        """Return the dataset's folder under a data root."""
        return Path(data_root) / (self.folder or self.name)


@dataclass(frozen=True, slots=True)
class RecordingPlace:
    """Where one recording is, before anything is read."""

    path: Path
    scenario: str
    name: str


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """One recording on disk, with what reading it once has shown."""

    path: Path
    scenario: str
    name: str
    dataset: str
    role: Role
    content_hash: str
    vehicle: str | None = None
    num_messages: int = 0
    num_attacks: int = 0
    num_bad_rows: int = 0
    num_backward: int = 0
    labelled: bool = True
    labels_from: str = ""  # what tells the labels, where the file does not hold them itself
    blocks: Blocks | None = field(default=None, compare=False, repr=False)  # of `near_copies`

    def read(self, limits: ReadLimits | None = None) -> Messages:
        """Read the messages under this recording's name and scenario."""
        messages = read_recording(self.path, scenario=self.scenario, limits=limits)
        messages.name = self.name
        return messages


@dataclass(frozen=True, slots=True)
class DroppedRecording:
    """A recording left out because another one holds the same messages, or many of them."""

    recording: RecordingFile
    kept: RecordingFile
    reason: str


@dataclass(frozen=True)
class RecordingCatalog(Sequence[RecordingFile]):
    """Hold the recordings of a dataset, each content once per role, and those that were left out.

    `find_recordings` makes it; `read` of each file returns its messages.

    >>> RecordingCatalog(()).test
    {}
    """

    files: tuple[RecordingFile, ...]
    dropped: tuple[DroppedRecording, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[RecordingFile]:
        return iter(self.files)

    @overload
    def __getitem__(self, index: int) -> RecordingFile: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RecordingFile]: ...
    def __getitem__(self, index: int | slice) -> RecordingFile | Sequence[RecordingFile]:
        return self.files[index]

    @property
    def train(self) -> list[RecordingFile]:
        """List the training recordings."""
        return [file for file in self.files if file.role == "train"]

    @property
    def test(self) -> dict[str, list[RecordingFile]]:
        """List the test recordings of each test scenario, scenarios in order of their names."""
        scenarios = sorted({file.scenario for file in self.files if file.role == "test"})
        return {s: [f for f in self.files if f.role == "test" and f.scenario == s] for s in scenarios}

    def require_train(self) -> list[RecordingFile]:
        """List the training recordings; raise DatasetError when there is none."""
        if not self.train:
            copies = [one for one in self.dropped if one.recording.role == "train"]
            if copies:
                left_out, kept, reason = copies[0].recording.path, copies[0].kept.path, copies[0].reason
                raise DatasetError(
                    f"dataset {self.files[0].dataset!r} has nothing to train on: {left_out} is left out ({reason}: "
                    f"{kept}); take the test recording away, or give other training recordings"
                )
            found = ", ".join(sorted({file.scenario for file in self.files}))
            raise DatasetError(
                f"dataset {self.files[0].dataset!r} has no training scenario (found {found}): name a folder train_..., "
                "or list train_scenarios in its catalog entry"
            )
        return self.train


def load_catalog(catalog: Path | str | None = None) -> dict[str, DatasetEntry]:
    """Read the entries that come with the package, and those of a YAML file, which replace entries of their name."""
    text = (resources.files("kdgat.canbus") / "datasets.yaml").read_text(encoding="utf-8")
    entries = _parse_entries(text, "datasets.yaml")
    if catalog is not None:
        path = Path(catalog)
        if not path.is_file():
            raise DatasetError(f"{path}: catalog file not found; give a YAML file of `name: {{description: ...}}`")
        try:
            text = read_utf8(path)
        except UserError as error:
            raise DatasetError(str(error)) from error
        entries.update(_parse_entries(text, str(path)))
    return entries


def check_dataset_name(name: str) -> None:
    """Refuse a name that is no folder's directly below the data root: DatasetError, before anything is written."""
    try:
        require_dataset_name(name)
    except ValueError as error:
        raise DatasetError(str(error)) from error


def _parse_entries(text: str, where: str) -> dict[str, DatasetEntry]:
    try:
        content = read_yaml(text)
    except yaml.YAMLError as error:
        raise DatasetError(f"{where}: is no valid YAML: {describe_yaml_error(error)}") from error
    if not isinstance(content, Mapping):
        raise DatasetError(f"{where}: must map dataset names to entries, `my_cars: {{description: ...}}`")
    entries = {}
    for name, keys in content.items():
        try:
            require_dataset_name(str(name))
            entries[str(name)] = validate_config(DatasetEntry, {"name": str(name), **(keys or {})})
        except (ValueError, TypeError) as error:
            raise DatasetError(f"{where}: entry {name!r}: {error}") from error
    return entries


def entry_or_default(name: str, catalog: Path | str | None = None) -> DatasetEntry:
    """Return the entry of a dataset, or the default one where there is none; its folder may be missing."""
    return load_catalog(catalog).get(name, DatasetEntry.of_folder(name))


def find_entry(name: str, data_root: Path | str, catalog: Path | str | None = None) -> DatasetEntry:
    """Find a dataset by name; a folder of that name without an entry gets the default one."""
    check_dataset_name(name)
    entries = load_catalog(catalog)
    entry = entries.get(name, DatasetEntry.of_folder(name))
    if not entry.folder_in(data_root).is_dir():
        raise DatasetError(_missing_folder_text(entry, Path(data_root), known=name in entries))
    return entry


def _missing_folder_text(entry: DatasetEntry, data_root: Path, known: bool) -> str:
    if not data_root.is_dir():
        return f"{data_root}: data root not found; give the folder that holds one folder per dataset"
    if data_root.name == (entry.folder or entry.name) and any(walk_recordings(data_root)):
        return f"{data_root} is the dataset itself: give its parent, --data-root {data_root.parent}"
    present = sorted(path.name for path in data_root.iterdir() if path.is_dir() and not path.name.startswith("."))
    near = difflib.get_close_matches(entry.name, present, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    kind = "dataset" if known else "unknown dataset"
    return (
        f"{kind} {entry.name!r}: no folder {entry.folder_in(data_root)}{hint} "
        f"(data root holds {', '.join(present) or 'no folder'}); put recordings there as "
        "<scenario>__<recording>.parquet or <scenario>/<recording>.csv, or use `kdgat data import`"
    )


def find_recordings(
    data_root: Path | str,
    dataset: DatasetEntry | str,
    *,
    catalog: Path | str | None = None,
    leave_out: Sequence[str] = (),
    limits: ReadLimits | None = None,
) -> RecordingCatalog:
    """Read every recording of a dataset once and return each content once, but those files that `leave_out` names.

    A training recording with the messages of a test recording or of another training recording is left out and
    listed in `dropped`; so is one that shares more than a few blocks of them with a test recording.

    Args:
        data_root: the folder that holds a folder for each dataset.
        dataset: its name, or its entry in the catalog.
        catalog: a YAML file of entries beside those that come with the package.
        leave_out: files, relative to the dataset's folder, that are no part of it.
        limits: how many bad rows of a recording are dropped and counted.

    Raises:
        DatasetError: without recordings.
        RecordingError: for one that cannot be read.

    >>> import tempfile
    >>> from kdgat.canbus.simulation import write_dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_dataset(folder, "cars", "tiny")
    ...     recordings = find_recordings(folder, "cars")
    ...     messages = recordings.train[0].read()
    >>> len(recordings.train), len(recordings.test), len(messages) == recordings.train[0].num_messages
    (8, 4, True)
    """
    entry = dataset if isinstance(dataset, DatasetEntry) else find_entry(dataset, data_root, catalog)
    folder = entry.folder_in(data_root)
    if not folder.is_dir():
        raise DatasetError(_missing_folder_text(entry, Path(data_root), known=True))
    files = [_read_file(place, entry, limits) for place in discover_recordings(folder, leave_out)]
    kept, dropped = _without_copies(files)
    return RecordingCatalog(tuple(kept), tuple(dropped))


def _read_file(place: RecordingPlace, entry: DatasetEntry, limits: ReadLimits | None) -> RecordingFile:
    """Read one recording and keep what it shows, not its messages."""
    messages = read_recording(place.path, scenario=place.scenario, limits=limits)
    return RecordingFile(
        path=place.path,
        scenario=place.scenario,
        name=place.name,
        dataset=entry.name,
        role=entry.role_of(place.scenario),
        content_hash=messages.content_hash(),
        vehicle=entry.vehicle_of(place.name),
        num_messages=len(messages),
        num_attacks=messages.num_attacks,
        num_bad_rows=messages.num_bad_rows,
        num_backward=messages.num_backward,
        labelled=messages.labelled,
        labels_from=messages.labels_from,
        blocks=kept_blocks(messages),
    )


def split_roles(recordings: Sequence[RecordingFile], hold_out: Sequence[str]) -> RecordingCatalog:
    """Keep every recording whose name (or vehicle) matches a word out of training; all others train.

    Words are compared as parts of the name, without case. The recordings kept out form the test scenario
    `held_out`; recordings of test scenarios train when no word matches. An empty `hold_out` changes nothing.
    """
    dropped = recordings.dropped if isinstance(recordings, RecordingCatalog) else ()
    if not hold_out:
        return RecordingCatalog(tuple(recordings), dropped)
    held_out = [matches_hold_out(file.name, file.vehicle, hold_out) for file in recordings]
    names_held_out = Counter(file.name for file, is_held_out in zip(recordings, held_out, strict=True) if is_held_out)
    files = []
    for file, is_held_out in zip(recordings, held_out, strict=True):
        if not is_held_out:
            files.append(replace(file, role="train"))
            continue
        # Recordings of one name from several scenarios keep the scenario in it, or one would take the other's place.
        name = file.name if names_held_out[file.name] == 1 else f"{file.scenario}/{file.name}"
        files.append(replace(file, role="test", scenario=HELD_OUT, name=name))
    if not any(file.role == "test" for file in files):
        names = ", ".join(sorted({file.name for file in files}))
        raise DatasetError(f"hold_out={list(hold_out)!r} matches no recording; their names are {names}")
    kept, newly_dropped = _without_copies(files)
    return RecordingCatalog(tuple(kept), (*dropped, *newly_dropped))


def matches_hold_out(name: str, vehicle: str | None, hold_out: Sequence[str]) -> bool:
    """Return whether a recording's name, or its vehicle, holds one of the words."""
    return any(word.lower() in text for word in hold_out for text in (name.lower(), (vehicle or "").lower()))


def discover_recordings(
    folder: Path, leave_out: Sequence[str] = (), content: FolderContent | None = None
) -> list[RecordingPlace]:
    """List the recordings in a dataset's folder, in both layouts, without reading them.

    Names that say nothing are decided by the beginning of the file. `leave_out` names files, relative to the folder,
    that are no part of it; `content` is what the folder is known to hold. Raise DatasetError when there is none, or
    when one has no scenario.
    """
    places = list_places(content or survey_folder(folder), folder, leave_out)
    for place in places:
        if not place.scenario:
            raise DatasetError(f"{place.path}: {no_scenario(place.path, folder)}")
    return places


def list_places(content: FolderContent, folder: Path, leave_out: Sequence[str] = ()) -> list[RecordingPlace]:
    """List the recordings of a folder's content as `discover_recordings`, those without a scenario, too."""
    found = sorted(one for one in content.recordings if one[2].relative_to(folder).as_posix() not in leave_out)
    if not found:
        notes = "; ".join(content.notes())
        raise DatasetError(
            f"{folder}: no recording; expected <scenario>__<recording>.parquet or <scenario>/<recording>.csv "
            f"({', '.join(RECORDING_SUFFIXES)})" + (f"; {notes}" if notes else "")
        )
    names = Counter((scenario, name) for scenario, name, _ in found)
    # One name in two formats: what follows the name distinguishes them in reports.
    return [
        RecordingPlace(
            path, scenario, name if names[scenario, name] == 1 else name + path.name.removeprefix(recording_stem(path))
        )
        for scenario, name, path in found
    ]


def no_scenario(path: Path, folder: Path) -> str:
    """Say what to do about a file without a scenario."""
    return (
        f"{NO_SCENARIO}; rename it to <scenario>{SCENARIO_SEPARATOR}{path.name} or move it into a folder "
        f"{folder}/<scenario>/"
    )


def walk_recordings(folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Yield scenario, name and path of what is a recording; the scenario is empty where its name has none.

    Pipes and devices are none, whatever they are called, nor is a file whose name is no UTF-8.
    """
    yield from survey_folder(folder).recordings


def _without_copies(files: Sequence[RecordingFile]) -> tuple[list[RecordingFile], list[DroppedRecording]]:
    """Keep each content once among the training recordings, and none of them that a test recording also holds."""
    dropped: list[DroppedRecording] = []
    tests: dict[str, RecordingFile] = {}
    seen_in_scenario: dict[tuple[str, str], RecordingFile] = {}
    kept_tests = set()
    for file in files:
        if file.role == "test":
            first = seen_in_scenario.setdefault((file.scenario, file.content_hash), file)
            tests.setdefault(file.content_hash, file)
            if first is file:
                kept_tests.add(file.path)
            else:
                dropped.append(DroppedRecording(file, first, "same messages as another recording of its scenario"))
    trains: dict[str, RecordingFile] = {}
    # Of copies that differ in their labels the one with more attacks stays: attack traffic must not pass for benign.
    for file in sorted((f for f in files if f.role == "train"), key=lambda f: -f.num_attacks):
        if file.content_hash in tests:
            dropped.append(DroppedRecording(file, tests[file.content_hash], "same messages as a test recording"))
        elif file.content_hash in trains:
            first = trains[file.content_hash]
            differ = "" if first.num_attacks == file.num_attacks else ", which labels more attacks"
            dropped.append(DroppedRecording(file, first, f"same messages as another training recording{differ}"))
        elif (near := _near_copy(file, tests.values())) is not None:
            test, share = near
            reason = f"shares {share:.0%} of the blocks of messages with a test recording"
            dropped.append(DroppedRecording(file, test, reason))
        else:
            trains[file.content_hash] = file
    kept_paths = kept_tests | {file.path for file in trains.values()}
    return [file for file in files if file.path in kept_paths], dropped


def _near_copy(train: RecordingFile, tests: Iterable[RecordingFile]) -> tuple[RecordingFile, float] | None:
    """Find the test recording that a training recording shares too much with, and the share."""
    shares = [
        (test, shared_blocks(train.blocks, test.blocks))
        for test in tests
        if train.blocks is not None and test.blocks is not None
    ]
    test, share = max(shares, key=lambda found: found[1], default=(train, 0.0))
    return (test, share) if share > MOST_SHARED else None
