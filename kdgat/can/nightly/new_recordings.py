"""Which recordings are new or changed since the last nightly run, by content, and how they come into the data root.

Two places are looked at: an inbox, whose files are imported, and the dataset's folder itself. A file that cannot be
used is named with its reason, looked at again every night, and stands in nobody's way. One that ends the process which
reads it (`kdgat/canbus/reading.py`) is left alone until it changes.
"""

import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from kdgat.base import UserError, sha256_of_file
from kdgat.base.files import make_folder, write_snapshot
from kdgat.can.config import DataConfig
from kdgat.canbus import RecordingError
from kdgat.canbus.catalog import entry_or_default, find_entry, matches_hold_out, walk_recordings
from kdgat.canbus.folders import why_no_recording
from kdgat.canbus.importing import free_place
from kdgat.canbus.messages import SCENARIO_SEPARATOR
from kdgat.canbus.names import is_recording, is_utf8, tells_labels
from kdgat.canbus.readers.limits import refuse_holes
from kdgat.canbus.reading import Answer, ReadingProcess, ReadingRequest
from kdgat.family.night import NightLedger

REPLACED: Final = ".replaced"  # folder in the dataset's folder for files whose recording came anew under another name
NO_SCENARIO: Final = "no scenario in its name: call it <scenario>__<recording>, or put it into a folder <scenario>"
NO_UTF8: Final = "its name is no text in UTF-8: rename it"
MAX_DEATHS: Final = 2
"""Nights that may die while a file is read; somebody may have ended one of them."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")


class Signature(_Record):
    """What the file system says about a file; while it stays, the content is not read again."""

    num_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int

    def is_fresh(self, settle_s: float) -> bool:
        """Return whether the file may still be being written; one of the future is known by when it was put there."""
        return max(0.0, time.time() - min(self.modified_ns, self.changed_ns) / 1e9) < settle_s

    @classmethod
    def of(cls, path: Path) -> "Signature":
        """Ask the file system."""
        status = path.stat()
        return cls(
            num_bytes=status.st_size,
            modified_ns=status.st_mtime_ns,
            changed_ns=status.st_ctime_ns,
            inode=status.st_ino,
        )


class Terms(_Record):
    """What else than its content decides whether a file can be used."""

    trains: bool  # as catalog entry and hold_out say
    max_bad_fraction: float


class KnownFile(_Record):
    """A file that was looked at: its content, and why it cannot be used (empty: it can)."""

    signature: Signature
    sha256: str
    terms: Terms | None = None  # under which it can be used; None before they were written down
    refusal: str = ""
    is_lethal: bool = False  # it ended what read it: it is not read again while its signature stays
    target: str = ""  # of a file of the inbox that was imported: the recording's file in the dataset's folder


class NightlyLedger(NightLedger):
    """The ledger of nights of a dataset: what is known of files, too; `done` is by path below the dataset's folder."""

    inbox: dict[str, KnownFile] = Field({})  # path below the inbox -> file
    data: dict[str, KnownFile] = Field({})  # path below the dataset's folder -> file
    refused: dict[str, str] = Field({})  # file that the last night refused -> its content (empty: unreadable), and why


@dataclass
class NewRecordings:
    """The recordings that are new or changed, and what else a nightly run found."""

    recordings: dict[str, str]  # path below the dataset's folder -> sha256, of all that can be used
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    imported: dict[str, str] = field(default_factory=dict)  # file of the inbox -> file of the dataset's folder
    refused: dict[str, str] = field(default_factory=dict)  # file -> reason
    newly_refused: tuple[str, ...] = ()  # of these, the files that the night before did not refuse for that reason
    waiting: list[str] = field(default_factory=list)  # files that are still being written
    leave_out: tuple[str, ...] = ()  # files of the dataset's folder that cannot be used, or not yet

    @property
    def is_any(self) -> bool:
        """Return whether there is something to train on that was not there before."""
        return bool(self.new or self.changed)

    @property
    def all_refused(self) -> bool:
        """Return whether files came, and not one of them can be used."""
        return bool(self.newly_refused) and not self.is_any

    def describe_refusals(self) -> str:
        """Name the files that are refused for the first time, with the reasons."""
        return "; ".join(f"{file}: {self.refused[file]}" for file in self.newly_refused)

    def describe(self) -> str:
        """Describe in one line what there is."""
        counts = (
            (len(self.new), "new"),
            (len(self.changed), "changed"),
            (len(self.refused), "refused"),
            (len(self.waiting), "still being written"),
        )
        listed = [f"{count} {what}" for count, what in counts if count]
        return f"recordings: {', '.join(listed)}" if listed else "no recording is new or has changed"


def require_recordings(data: DataConfig, inbox: Path | None) -> None:
    """Refuse to begin where neither the dataset's folder nor a file in the inbox is there: DatasetError."""
    if inbox is None or not holds_files(inbox):
        find_entry(data.dataset, data.data_root, data.catalog)


def gather_new_recordings(
    data: DataConfig,
    inbox: Path | None,
    ledger: NightlyLedger,
    settle_s: float,
    reader: ReadingProcess,
    being_read: Path,
) -> NewRecordings:
    """Import what the inbox holds, look at the dataset's folder, and say what is new since the last completed night.

    The ledger learns of every file that was looked at, but not that the new recordings are done with.

    Args:
        data: the dataset, and what is tolerated in recordings.
        inbox: folder in the layout of a dataset's folder, made if it is missing; None for none.
        ledger: what is known.
        settle_s: a file that changed less than this many seconds ago, and not by this import, is still being written.
        reader: of recordings.
        being_read: a note of the recording that is being read, should this process die of it.

    Raises:
        UserError, DatasetError: naming a folder that is not there and what to do.
    """
    scan = _RecordingScan(data, ledger, reader, being_read)
    imported: dict[str, str] = {}
    refused: dict[str, str] = {}
    waiting: list[str] = []
    if inbox is not None:
        imported, refused, waiting = scan.take_in(inbox, settle_s)
    known, left = scan.look(settle_s, set(imported.values()))
    usable = {name: file.sha256 for name, file in known.items() if not file.refusal}
    refusals = left | {name: file.refusal for name, file in known.items() if file.refusal}
    refused |= {str(scan.folder / name): reason for name, reason in refusals.items() if reason}
    badly_named = (path for path in scan.folder.rglob("*") if not is_utf8(path) and is_recording(path))
    refused |= {shown(path): NO_UTF8 for path in badly_named if path.is_file()}
    contents = scan.contents(inbox)
    marks = {file: f"{contents.get(file, '')} {reason}" for file, reason in refused.items()}
    newly_refused = tuple(sorted(file for file, mark in marks.items() if ledger.refused.get(file) != mark))
    ledger.refused = marks
    return NewRecordings(
        recordings=usable,
        new=sorted(usable.keys() - ledger.done.keys()),
        changed=sorted(name for name in usable.keys() & ledger.done.keys() if usable[name] != ledger.done[name]),
        gone=sorted(ledger.done.keys() - known.keys() - left.keys()),
        imported=imported,
        refused=refused,
        newly_refused=newly_refused,
        waiting=[*waiting, *(str(scan.folder / name) for name, reason in left.items() if not reason)],
        leave_out=tuple(sorted(refusals)),
    )


def holds_files(inbox: Path) -> bool:
    """Return whether an inbox has a file. Hidden ones are none: NFS so keeps what was removed while it is read."""
    return any(path.is_file() and not path.name.startswith(".") for path in inbox.rglob("*"))


def _no_recordings(inbox: Path, recordings: Collection[Path]) -> list[Path]:
    """List what of an inbox is no folder and named like no recording or labels of one; hidden ones aside."""
    return sorted(
        path
        for path in inbox.rglob("*")
        if not path.is_dir()
        and path not in recordings
        and not tells_labels(path)
        and not any(part.startswith(".") for part in path.relative_to(inbox).parts)
    )


def _not_named_like_one(path: Path) -> str:
    if not is_utf8(path):
        return NO_UTF8
    if not path.is_file():
        return "is no file, but a pipe, a socket, a device or a link to nothing: remove it"
    if is_recording(path):
        return f"{NO_SCENARIO}, or remove it"
    why = why_no_recording(path) or "its name says that it lies beside recordings"
    return f"is no recording ({why}): rename or remove it"


def shown(path: Path) -> str:
    """Write a path as text, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class _RecordingScan:
    """Look at the files of an inbox and of a dataset's folder, each content once."""

    def __init__(self, data: DataConfig, ledger: NightlyLedger, reader: ReadingProcess, being_read: Path) -> None:
        self.data = data
        self.ledger = ledger
        self.reader = reader
        self.being_read = being_read
        self.deaths = self._deaths()
        self.entry = entry_or_default(data.dataset, data.catalog)
        self.folder = self.entry.folder_in(data.data_root)

    def take_in(self, inbox: Path, settle_s: float) -> tuple[dict[str, str], dict[str, str], list[str]]:
        """Import what is new in the inbox; return what was imported, what was refused and why, and what waits."""
        folder = self.folder.resolve()
        if inbox.resolve() == folder or folder in inbox.resolve().parents or inbox.resolve() in folder.parents:
            raise UserError(f"inbox={inbox}: lies in the dataset's folder {folder}, or around it; use another folder")
        try:
            inbox.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"inbox={inbox}: cannot be made ({error.strerror}); name another folder") from error
        places = sorted(walk_recordings(inbox))
        imported: dict[str, str] = {}
        refused: dict[str, str] = {}
        waiting: list[str] = []
        seen: dict[str, KnownFile] = {}
        found = [(scenario, name, path, path.relative_to(inbox).as_posix()) for scenario, name, path in places]
        known = {key: self.ledger.inbox[key] for *_, key in found if key in self.ledger.inbox}
        targets = {file.target: key for key, file in known.items() if file.target}
        for scenario, name, path, key in found:
            before = known.get(key)
            try:
                signature = Signature.of(path)
                is_same = before is not None and before.signature == signature
                # What was imported is judged where it lies now; what was refused is judged anew.
                if before is not None and is_same and (not before.refusal or before.is_lethal):
                    file = before
                elif signature.is_fresh(settle_s):
                    waiting.append(key)
                    if before is not None:
                        seen[key] = before
                    continue
                else:
                    sha256 = before.sha256 if before is not None and is_same else _content(path)
                    if before is not None and before.sha256 == sha256 and not before.refusal:
                        file = before.model_copy(update={"signature": signature})
                    else:
                        others = {target: other for target, other in targets.items() if other != key}
                        file = self._import(path, scenario, name, signature, sha256, others)
                        if file.refusal and Signature.of(path) != signature:  # it changed while it was read
                            waiting.append(key)
                            continue
                        if file.target:
                            imported[key] = file.target
            except OSError as error:  # gone or not readable by us: the others are not
                refused[str(path)] = str(error)
                continue
            except RecordingError as error:
                refused[str(path)] = error.problem
                continue
            seen[key] = file
            if file.target:
                targets[file.target] = key
            if file.refusal:
                refused[str(path)] = file.refusal
        for path in _no_recordings(inbox, {path for _, _, path, _ in found}):
            key = path.relative_to(inbox).as_posix()
            try:
                if path.is_file() and Signature.of(path).is_fresh(settle_s):  # a copy until it is whole, perhaps
                    waiting.append(shown(Path(key)))
                else:
                    refused[shown(path)] = _not_named_like_one(path)
            except OSError as error:
                refused[shown(path)] = str(error)
        self.ledger.inbox = seen
        return imported, refused, waiting

    def contents(self, inbox: Path | None) -> dict[str, str]:
        """Return file -> sha256 of all files that were read."""
        found = {str(self.folder / name): file.sha256 for name, file in self.ledger.data.items()}
        if inbox is not None:
            found |= {str(inbox / name): file.sha256 for name, file in self.ledger.inbox.items()}
        return found

    def _import(
        self, path: Path, scenario: str, name: str, signature: Signature, sha256: str, targets: Mapping[str, str]
    ) -> KnownFile:
        flat = name.replace("/", "-")
        target = f"{scenario}{SCENARIO_SEPARATOR}{flat}.parquet"
        answer = Answer("")
        if not scenario:
            answer = Answer(NO_SCENARIO)
        elif target in targets:
            answer = Answer(f"is the same recording of the same scenario as {targets[target]}; give it another name")
        else:
            trains, put_aside = self._trains(scenario, name), str(self.folder / REPLACED)
            answer = self._read(path, scenario, trains, signature, flat, str(self.folder), put_aside)
            if not answer.refusal:
                self._put_aside(scenario, name, self.folder / target)
        return KnownFile(
            signature=signature, sha256=sha256, target="" if answer.refusal else target, **answer._asdict()
        )

    def _read(self, path: Path, scenario: str, trains: bool, signature: Signature, *into: str) -> Answer:
        """Have a file read, with a note of it that stays where this process dies of it."""
        modified_ns, deaths = self.deaths.get(str(path), (0, 0))
        deaths = deaths if modified_ns == signature.modified_ns else 0
        if deaths >= MAX_DEATHS:
            text = "ended nights, or what read it: export it again; `touch` it to have it read again"
            return Answer(text, is_lethal=True)
        self._note({**self.deaths, str(path): (signature.modified_ns, deaths + 1)})
        self.deaths.pop(str(path), None)
        try:
            answer = self.reader.ask(ReadingRequest(str(path), scenario, self.data.max_bad_fraction, trains, *into))
            if answer.is_lethal:  # known, too, if this night dies of something else
                self.deaths[str(path)] = (signature.modified_ns, MAX_DEATHS)
            return answer
        finally:
            self._note(self.deaths)

    def _note(self, deaths: Mapping[str, tuple[int, int]]) -> None:
        """Note of which files nights died; not forced to disk: it outlives the process, which is enough."""
        if make_folder(self.being_read.parent):
            write_snapshot(self.being_read, json.dumps(deaths).encode(), durable=False)

    def _deaths(self) -> dict[str, tuple[int, int]]:
        """Read which files nights before died of: path -> when it was changed, and how many died."""
        try:
            noted = json.loads(self.being_read.read_text())
            return {str(path): (int(modified_ns), int(deaths)) for path, (modified_ns, deaths) in noted.items()}
        except (OSError, ValueError, TypeError, AttributeError):  # none did, or it was not written whole
            return {}

    def _put_aside(self, scenario: str, name: str, kept: Path) -> None:
        """Move other files of the recording that was just imported where no dataset looks; nothing is deleted."""
        for path in self._places.pop((scenario, name), []):
            if path != kept:
                place = free_place(self.folder / REPLACED / path.relative_to(self.folder))
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)

    @cached_property
    def _places(self) -> dict[tuple[str, str], list[Path]]:
        """Find the files of each recording as the first import leaves them; nothing is imported twice in a night."""
        found: dict[tuple[str, str], list[Path]] = {}
        for scenario, name, path in walk_recordings(self.folder):
            found.setdefault((scenario, name), []).append(path)
        return found

    def look(self, settle_s: float, imported: Collection[str]) -> tuple[dict[str, KnownFile], dict[str, str]]:
        """Look at every file of the dataset's folder; return what they are, and which could not be looked at.

        Of these, why; no reason is given for one that is still being written. All are read
        but those known to be usable, on this machine: a night that finds much parses it where it runs.
        """
        if not self.folder.is_dir():
            raise UserError(
                f"{self.folder}: no such folder; put recordings there as <scenario>__<recording>.parquet or "
                "<scenario>/<recording>.csv, or into the inbox"
            )
        found: dict[str, KnownFile] = {}
        left: dict[str, str] = {}
        for scenario, name, path in sorted(walk_recordings(self.folder)):
            key = path.relative_to(self.folder).as_posix()
            terms = Terms(trains=self._trains(scenario, name), max_bad_fraction=self.data.max_bad_fraction)
            try:
                file = self._look_at(
                    path, scenario, terms, self.ledger.data.get(key), 0.0 if key in imported else settle_s
                )
            except OSError as error:  # gone or not readable by us: the others are not
                left[key] = str(error)
            except RecordingError as error:
                left[key] = error.problem
            else:
                if file is None:
                    left[key] = ""
                else:
                    found[key] = file
        self.ledger.data = found
        return found, left

    def _look_at(
        self, path: Path, scenario: str, terms: Terms, before: KnownFile | None, settle_s: float
    ) -> KnownFile | None:
        """Return what a file is, from what was known where it is the same; None while it is being written."""
        signature = Signature.of(path)
        is_same = before is not None and before.signature == signature
        if before is not None and is_same and before.is_lethal:
            return before
        sha256 = before.sha256 if before is not None and is_same else _content(path)
        if before is not None and (before.sha256, before.terms, before.refusal) == (sha256, terms, ""):
            return before.model_copy(update={"signature": signature})
        if not is_same and signature.is_fresh(settle_s):
            return None
        answer = self._read(path, scenario, terms.trains, signature) if scenario else Answer(NO_SCENARIO)
        if answer.refusal and Signature.of(path) != signature:  # it changed while it was read
            return None
        return KnownFile(signature=signature, sha256=sha256, terms=terms, **answer._asdict())

    def _trains(self, scenario: str, name: str) -> bool:
        if self.data.hold_out:
            return not matches_hold_out(name, self.entry.vehicle_of(name), self.data.hold_out)
        return self.entry.role_of(scenario) == "train"


def _content(path: Path) -> str:
    """Hash a file; RecordingError for one that is nearly all holes, which would take for ever."""
    refuse_holes(path)
    return sha256_of_file(path)
