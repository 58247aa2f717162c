"""A plain directory of trained models: `index.json`, and below `models/` one directory each that never changes.

A model is copied under a name that begins with a dot, forced to disk and renamed; only then the index names it. A
writer that was killed leaves the index as it was: the next one removes the unfinished copy, or takes in the finished
one. The directory can be moved or copied as a whole.
"""

import difflib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from kdgat.base import UserError, sha256_of_file, sync_to_disk, write_bytes_atomically
from kdgat.base.files import ask_anew, list_folder, put_in_place, remove_temporary_files, remove_tree
from kdgat.base.kept import read_kept
from kdgat.registry.entry import (
    Judgement,
    Metrics,
    ModelEntry,
    ModelFile,
    RegistryIndex,
    ServiceChange,
    now,
    service_name,
)
from kdgat.stage import RunDirectoryError, StageBusyError
from kdgat.stage.owner import Owner, own

logger = logging.getLogger(__name__)

REGISTRY_VARIABLE: Final = "KDGAT_REGISTRY"
ENTRY_FILE: Final = "entry.json"
UNFINISHED: Final = ".adding-"  # begins the name of a model that is being copied
LOCK_WAIT_S: Final = 60.0  # a writer needs about a second, unless models are large
LOCK_POLL_S: Final = 0.2
READ_ONLY: Final = 0o444
NAME_LENGTH: Final = 60  # of a dataset in an id: file systems know names of up to 255 bytes


class RegistryError(UserError):
    """A registry cannot be used as it is asked to; the text names file or model, and what to do."""


class Registry:
    """Read and change the registry in a directory."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.index_path = self.path / "index.json"
        self.models_path = self.path / "models"
        self.lock_path = self.path / "registry.lock"
        self.owner_path = self.path / "registry-owner.json"
        self._ignored: set[Path] = set()  # folders that were warned of

    def exists(self) -> bool:
        """Return whether anything was registered here."""
        ask_anew(self.path)  # a night on another node has done it just now
        return self.index_path.is_file()

    def read(self) -> RegistryIndex:
        """Read the index, of an empty folder an empty one; RegistryError if there is none or it is damaged."""
        ask_anew(self.path)
        try:
            content = self.index_path.read_bytes()
        except FileNotFoundError:
            if self.path.is_dir() and not any(self.path.iterdir()):
                return RegistryIndex()
            raise RegistryError(
                f"{self.path} is no registry: {self.index_path.name} is missing; give the directory that the nightly "
                "flow was given as `registry`"
            ) from None
        advice = (
            f"put a copy of it back. Without one, move it away: the next command that writes finds the models below "
            f"{self.models_path} again, but which of them is in service must be said by `kdgat model promote`"
        )
        return read_kept(RegistryIndex, content, self.index_path, advice, RegistryError)

    def model_path(self, model_id: str) -> Path:
        """Return the directory of a model."""
        return self.models_path / model_id

    def entry(self, model_id: str) -> ModelEntry:
        """Find a model; RegistryError names the nearest id there is."""
        return _entry(self.read(), model_id, self.path)

    def in_service(self, family: str, dataset: str) -> ModelEntry | None:
        """Return the model in service, None if there is none or nothing was registered here yet."""
        if not self.exists():
            return None
        index = self.read()
        model_id = index.in_service(family, dataset)
        return None if model_id is None else _entry(index, model_id, self.path)

    def verify(self, entry: ModelEntry) -> None:
        """Raise RegistryError unless every file of a model is there as it was registered."""
        directory = self.model_path(entry.id)
        for name, known in entry.files.items():
            path = directory / name
            if not path.is_file():
                raise RegistryError(f"model {entry.id}: {path} is missing; put it back, or use another model")
            if path.stat().st_size != known.num_bytes or sha256_of_file(path) != known.sha256:
                raise RegistryError(
                    f"model {entry.id}: {path} is not the file that was registered; put that back, or use another model"
                )

    def add(
        self,
        source: Mapping[str, Path | bytes],
        *,
        family: str,
        dataset: str,
        content: str,
        parent: str | None = None,
        metrics: Metrics | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> ModelEntry:
        """Copy a model into the registry, or return the entry that it has already.

        Args:
            source: path below the model's directory -> the file to copy, or its content.
            family, dataset: what it is a model of.
            content: hash of what makes it this model.
            parent: id of the model whose weights it started from.
            metrics: scenario -> metric -> value.
            provenance: plain data.

        Raises:
            RegistryError: if the registry is damaged, another writer keeps it busy, or a path leads elsewhere.
        """
        if outside := [name for name in source if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise RegistryError(f"{outside[0]} lies outside of the model's directory: name a path below it")
        with self._writing() as (index, owner):
            found = _same(index, family, dataset, content)
            if found is not None:
                return found
            known = {entry.id for entry in index.models}
            model_id = _new_id(lambda name: self.model_path(name).exists() or name in known, dataset, content)
            unfinished = self.models_path / f"{UNFINISHED}{model_id}"
            files = {name: _copy(data, unfinished / name) for name, data in sorted(source.items())}
            entry = ModelEntry(
                id=model_id,
                family=family,
                dataset=dataset,
                content=content,
                parent=parent,
                metrics=metrics or {},
                provenance=dict(provenance or {}),
                files=files,
            )
            write_bytes_atomically(unfinished / ENTRY_FILE, _json(entry))
            for folder in (unfinished, *(path for path in unfinished.rglob("*") if path.is_dir())):
                sync_to_disk(folder)
            put_in_place(unfinished, self.model_path(model_id))
            sync_to_disk(self.models_path)
            self._write(index.model_copy(update={"models": (*index.models, entry)}), owner)
            return entry

    def promote(
        self,
        model_id: str,
        *,
        reason: str,
        by: str,
        hold: bool = False,
        expected: str | None = "",
        anchors: tuple[str, ...] | None = None,
    ) -> ServiceChange:
        """Put a model into service; `by` and `reason` are for the history.

        Args:
            hold: whether nights leave it there; the one in service can be held, too.
            expected: id of the model that must be in service still (None: none), and not held, because the decision
                compared with it; by default any may be.
            anchors: earlier models that what follows is held to as well; None where a person decided.

        Raises:
            RegistryError: if there is no such model, it is damaged or in service already, or another one than
                `expected` is in service, or is held there.
        """
        with self._writing() as (index, owner):
            entry = _entry(index, model_id, self.path)
            current, held = index.in_service(entry.family, entry.dataset), index.held(entry.family, entry.dataset)
            if current == model_id and not hold:
                hint = "; `kdgat model release` lets nights replace it" if held else ""
                raise RegistryError(f"{model_id} is in service for {entry.service} already{hint}")
            if expected != "" and (current != expected or held):
                what = f"is {held.describe_hold()}" if held else "is in service by now"
                raise RegistryError(
                    f"{entry.service}: {current or 'no model'} {what}, and {model_id} was compared with "
                    f"{expected or 'none'}; compare again, or decide by `kdgat model promote {model_id}`"
                )
            kind = "hold" if current == model_id else "promotion"
            return self._change(
                index, owner, entry, kind=kind, previous=current, reason=reason, by=by, hold=hold, anchors=anchors
            )

    def note(self, decision: Judgement) -> None:
        """Keep what was decided about a model, unless the last decision about it says the same."""
        with self._writing() as (index, owner):
            _entry(index, decision.model, self.path)
            before = index.decisions_about(decision.model)
            if not before or not before[-1].is_repeated_by(decision):
                self._write(index.model_copy(update={"decisions": (*index.decisions, decision)}), owner)

    def rollback(self, family: str, dataset: str, *, reason: str, by: str, hold: bool = False) -> ServiceChange:
        """Put the model back into service that was in service before; RegistryError if there was none."""
        with self._writing() as (index, owner):
            served = index.served(family, dataset)
            if len(served) < 2:
                raise RegistryError(
                    f"{service_name(family, dataset)}: no model was in service before {served[0]}"
                    if served
                    else f"{service_name(family, dataset)}: no model is in service, so there is nothing to roll back"
                )
            entry = _entry(index, served[-2], self.path)
            return self._change(
                index, owner, entry, kind="rollback", previous=served[-1], reason=reason, by=by, hold=hold
            )

    def release(self, family: str, dataset: str, *, reason: str, by: str) -> ServiceChange:
        """Let nights replace a model again that is held in service; RegistryError if none is."""
        with self._writing() as (index, owner):
            held = index.held(family, dataset)
            if held is None:
                raise RegistryError(f"{service_name(family, dataset)}: no model is held in service, nothing to release")
            entry = _entry(index, held.model, self.path)
            return self._change(index, owner, entry, kind="release", previous=entry.id, reason=reason, by=by)

    def _change(self, index: RegistryIndex, owner: Owner, entry: ModelEntry, **parts: Any) -> ServiceChange:
        change = ServiceChange(family=entry.family, dataset=entry.dataset, model=entry.id, **parts)
        if change.kind != "release":
            self.verify(entry)
        self._write(index.model_copy(update={"history": (*index.history, change)}), owner)
        return change

    def _write(self, index: RegistryIndex, owner: Owner) -> None:
        write_bytes_atomically(self.index_path, _json(index), before_rename=owner.check)

    @contextmanager
    def _writing(self) -> Iterator[tuple[RegistryIndex, Owner]]:
        """Be the only writer, after what killed ones left is cleaned up; yields the index as it is now."""
        self.models_path.mkdir(parents=True, exist_ok=True)
        with self._lock() as owner:
            index = self.read() if self.exists() else RegistryIndex()
            remove_temporary_files(self.path)
            for left in self.models_path.glob(f"{UNFINISHED}*"):
                remove_tree(left)
            models = {entry.id: entry for entry in index.models}
            models |= {entry.id: entry for entry in self._unlisted(models)}
            if len(models) != len(index.models) or not self.exists():
                index = index.model_copy(update={"models": tuple(models.values())})
                self._write(index, owner)
            yield index, owner

    def _unlisted(self, known: Collection[str]) -> list[ModelEntry]:
        """Read the models that the index does not name, oldest first; warn once of folders that only look like one."""
        found = []
        for folder in list_folder(self.models_path, "[!.]*"):
            path = folder / ENTRY_FILE
            if folder.name in known or not path.exists():
                continue
            try:
                entry = read_entry(path)
            except (OSError, UserError) as error:
                problem = f"its {ENTRY_FILE} cannot be read ({str(error).splitlines()[0]})"
            else:
                if entry.id == folder.name:
                    found.append(entry)
                    continue
                problem = f"its {ENTRY_FILE} is that of {entry.id}"
            if folder not in self._ignored:
                self._ignored.add(folder)
                logger.warning("%s is no model of this registry and is ignored: %s", folder, problem)
        return sorted(found, key=lambda entry: entry.created)

    @contextmanager
    def _lock(self) -> Iterator[Owner]:
        give_up_at = time.monotonic() + LOCK_WAIT_S
        while True:
            lock = own(self.lock_path, self.owner_path)
            try:
                owner = lock.__enter__()
                break
            except StageBusyError as error:
                if time.monotonic() > give_up_at:
                    raise RegistryError(f"{self.path} is being written by another process: {error}") from error
                time.sleep(LOCK_POLL_S)
            except RunDirectoryError as error:
                raise RegistryError(f"{self.path} cannot be written to: {error.__cause__ or error}") from error
        try:
            yield owner
        finally:
            lock.__exit__(None, None, None)


def find_model(model: str, registry: Path | str | None = None) -> Path:
    """Return the run directory or exported file that is meant: a path, or the id of a model in a registry.

    `registry` is the directory of one, by default that of $KDGAT_REGISTRY. UserError, RegistryError say what is
    wrong.
    """
    path = Path(model)
    if path.exists():
        return path
    where = registry or os.environ.get(REGISTRY_VARIABLE)
    if where is None:
        raise UserError(
            f"{model} does not exist: give the output directory of a training, an exported file, or with --registry "
            f"(or ${REGISTRY_VARIABLE}) the id of a registered model"
        )
    found = Registry(where)
    entry = found.entry(model)
    found.verify(entry)
    return found.model_path(entry.id)


def read_entry(path: Path) -> ModelEntry:
    """Read the `entry.json` of a model; RegistryError if it is damaged, or of another version."""
    return read_kept(ModelEntry, path.read_bytes(), path, "put a copy of it back", RegistryError)


def _entry(index: RegistryIndex, model_id: str, path: Path) -> ModelEntry:
    for entry in index.models:
        if entry.id == model_id:
            return entry
    known = [entry.id for entry in index.models]
    near = difflib.get_close_matches(model_id, known, n=1, cutoff=0.3)
    hint = f"did you mean {near[0]}?" if near else "`kdgat model list` shows those there are"
    raise RegistryError(f"{path} has no model {model_id!r}: {hint}")


def _same(index: RegistryIndex, family: str, dataset: str, content: str) -> ModelEntry | None:
    wanted = (family, dataset, content)
    return next((entry for entry in index.models if (entry.family, entry.dataset, entry.content) == wanted), None)


def _new_id(taken: Callable[[str], bool], dataset: str, content: str) -> str:
    """Name a model so that people can tell it: dataset, day, and the beginning of its content hash."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", dataset)[:NAME_LENGTH].strip("-_") or "model"
    day = now()[:10].replace("-", "")
    candidates = (f"{name}-{day}-{content[:digits]}" for digits in range(8, len(content) + 1))
    return next(candidate for candidate in candidates if not taken(candidate))


def _copy(data: Path | bytes, target: Path) -> ModelFile:
    """Write one file of a model and force it to disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(data, bytes):
        target.write_bytes(data)
    else:
        shutil.copyfile(data, target)
    sync_to_disk(target)
    target.chmod(READ_ONLY)
    return ModelFile(sha256=sha256_of_file(target), num_bytes=target.stat().st_size)


def _json(record: ModelEntry | RegistryIndex) -> bytes:
    return (record.model_dump_json(indent=2) + "\n").encode()
