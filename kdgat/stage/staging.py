"""Inputs of a stage on a fast disk: copied there once, checked, shared by stages side by side, removed by who is last.

    KDGAT_CACHE_ROOT/content/SHA256        each file once
    KDGAT_CACHE_ROOT/stages/TOKEN/N/NAME   hard links to those a stage reads, under their own names
    KDGAT_CACHE_ROOT/locks/...             one for each file that is being copied, linked or removed, one for each stage

How many stages use a file is the number of its links. A stage that was killed leaves its links; its lock is free then,
and the next stage removes them.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from kdgat.base import sha256_of_file, wait_until
from kdgat.base.files import HASH_BLOCK_BYTES, make_private_folder, put_in_place, remove_tree
from kdgat.base.locks import try_lock
from kdgat.stage.directory import RunDirectory
from kdgat.stage.spec import StageInput, StageSpec

logger = logging.getLogger(__name__)

CACHE_VARIABLE: Final = "KDGAT_CACHE_ROOT"
FORMER_VARIABLE: Final = "KD_GAT_CACHE_ROOT"  # of the program before this one, which people still export
FREE_SHARE: Final = 0.05  # of the disk, which others need
TEMPORARY: Final = ".tmp"
_CONTENT: Final = re.compile(rf"[0-9a-f]{{64}}({re.escape(TEMPORARY)})?")
LOCK_TIMEOUT_S: Final = 1800.0  # longer than any input takes to copy
LEAVE_TIMEOUT_S: Final = 2.0  # who was asked to stop waits for nobody who copies: the next stage removes its links
LOCK_AGAIN_S: Final = 0.05
OTHERS_AGE_S: Final = 30 * 86_400.0  # after which what another node has left is nobody's


@contextmanager
def staged(
    spec: StageSpec, directory: RunDirectory, environment: Mapping[str, str] = os.environ
) -> Iterator[StageSpec]:
    """Yield the spec with its inputs on the disk that `KDGAT_CACHE_ROOT` names; as it is where that is not set.

    Where they do not fit, or the folder cannot be used, a sentence in the log says so and they are read where they are.
    Seconds and bytes are noted in the stage's work.

    Args:
        spec: of the stage, its inputs verified.
        directory: of the stage.
        environment: of the process.
    """
    root = environment.get(CACHE_VARIABLE, "")
    if not root and environment.get(FORMER_VARIABLE):
        logger.warning("%s is not read, inputs are read where they are: set %s", FORMER_VARIABLE, CACHE_VARIABLE)
    if not root or not spec.inputs:
        yield spec
        return
    cache = _Cache(Path(root))
    try:
        try:
            used = spec.model_copy(update={"inputs": cache.take(spec, directory)})
        except OSError as error:
            logger.warning("inputs are read where they are, not from %s=%s: %s", CACHE_VARIABLE, root, error)
            cache.give_back()
            used = spec
        yield used
    finally:
        cache.give_back()


class _Cache:
    """A folder of inputs, and what one stage takes of it."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()
        self.content, self.stages, self.locks = (self.root / name for name in ("content", "stages", "locks"))
        self.token = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.folder = self.stages / self.token
        self.copied_bytes = 0
        self._lock: IO[str] | None = None  # held while the stage runs

    def take(self, spec: StageSpec, directory: RunDirectory) -> dict[str, StageInput]:
        """Link the inputs into a folder of the stage's own, copying those that are not there."""
        began, base = time.monotonic(), directory.path
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.root, self.content, self.stages, self.locks):
            # The nodes' /tmp is everybody's: what lies behind such a name would be removed as if it were the cache's.
            make_private_folder(path, refused=stat.S_IWOTH)
            path.chmod(0o700)
        self._lock = _opened(self._lock_path(self.token))
        if not try_lock(self._lock):
            raise OSError(f"{self.locks} is on a filesystem without locks")
        self._remove_dead()
        self._require_space(spec, base)
        places: dict[Path, Path] = {}  # files that lay beside each other do so here: parts of a shapefile
        inputs = {}
        for name, source in spec.inputs.items():
            path = source.resolve(base)
            folder = places.setdefault(path.parent, self.folder / str(len(places)))
            folder.mkdir(parents=True, exist_ok=True)
            link = folder / path.name
            if not link.exists():  # one file may be several inputs
                self._link(source.sha256, path, link)
            inputs[name] = source.model_copy(update={"path": str(link)})
        directory.work.staged_bytes, directory.work.staged_s = self.copied_bytes, time.monotonic() - began
        amount, seconds = self.copied_bytes / 1e6, directory.work.staged_s
        logger.info("staged %d inputs to %s, %.3g MB copied in %.1f s", len(inputs), self.root, amount, seconds)
        return inputs

    def give_back(self) -> None:
        """Remove the stage's links, and files that no other stage uses."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            self._remove_links(self.folder)
            self._lock_path(self.token).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s is left behind: %s", self.folder, error)
        finally:
            lock.close()

    def _link(self, sha256: str, source: Path, link: Path) -> None:
        with self._locked(sha256, LOCK_TIMEOUT_S) as lock_path:
            content = self.content / sha256
            if content.exists() and sha256_of_file(content) != sha256:
                logger.warning("%s is damaged: copied again", content)
                content.unlink()
            if not content.exists():
                try:
                    self._copy(sha256, source, content)
                except BaseException:
                    lock_path.unlink()
                    raise
            os.link(content, link)

    def _copy(self, sha256: str, source: Path, content: Path) -> None:
        # The lock is held: what has this name was left by a process that was killed.
        temporary = content.with_suffix(TEMPORARY)
        digest = hashlib.sha256()
        try:
            with source.open("rb") as read, temporary.open("wb") as written:
                while block := read.read(HASH_BLOCK_BYTES):
                    digest.update(block)
                    written.write(block)
                    self.copied_bytes += len(block)
            if digest.hexdigest() != sha256:
                raise OSError(f"{source} has changed while it was copied")
            put_in_place(temporary, content)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _require_space(self, spec: StageSpec, base: Path) -> None:
        missing = {s.sha256: s.resolve(base) for s in spec.inputs.values() if not (self.content / s.sha256).exists()}
        needed = sum(path.stat().st_size for path in missing.values())
        disk = shutil.disk_usage(self.root)
        free = disk.free - FREE_SHARE * disk.total
        if needed > free:
            raise OSError(
                f"{needed / 1e9:.3g} GB are to be copied, {max(free, 0.0) / 1e9:.3g} GB are free without the last "
                f"{FREE_SHARE:.0%} of the disk"
            )

    def _remove_dead(self) -> None:
        """Remove what stages have left that were killed: nobody holds their locks."""
        for folder in self.stages.iterdir():
            if folder.name == self.token or not _is_ours(folder):
                continue
            with _opened(self._lock_path(folder.name)) as lock:
                if try_lock(lock):
                    with suppress(OSError):  # what stays keeps nobody: the next one tries again
                        self._remove_links(folder)
                        self._lock_path(folder.name).unlink(missing_ok=True)
        for path in self.content.iterdir():  # half a file, or one whose stage was killed before it had a link
            if _CONTENT.fullmatch(path.name) is None:  # nothing that a stage has put there
                continue
            lock_path = self._lock_path(path.name.removesuffix(TEMPORARY))
            with _opened(lock_path) as lock:
                if try_lock(lock) and _is_still(lock_path, lock) and _is_unused(path):
                    path.unlink(missing_ok=True)
                    lock_path.unlink(missing_ok=True)

    def _remove_links(self, folder: Path) -> None:
        links = [link for link in sorted(folder.glob("*/*")) if link.is_file()]
        names = self._names() if links else {}
        left: OSError | None = None
        for link in links:
            try:
                with self._locked(names.get(link.stat().st_ino, link.name), LEAVE_TIMEOUT_S) as lock_path:
                    link.unlink()
                    content = self.content / lock_path.name
                    if content.exists() and content.stat().st_nlink == 1:
                        content.unlink()
                    lock_path.unlink()
            except OSError as error:
                left = error
        if left is not None:
            raise left
        remove_tree(folder)

    def _names(self) -> dict[int, str]:
        """Return the name of each file by its number on the disk, which its links share."""
        found = {}
        for content in self.content.iterdir():
            with suppress(FileNotFoundError):  # another stage was the last
                found[content.stat().st_ino] = content.name
        return found

    def _lock_path(self, name: str) -> Path:
        return self.locks / name

    @contextmanager
    def _locked(self, name: str, limit_s: float) -> Iterator[Path]:
        """Hold the lock of a file and yield its path, which who holds it may remove: whoever waits makes it anew."""
        path = self._lock_path(name)
        while True:
            with _opened(path) as lock:
                if not wait_until(lambda: bool(try_lock(lock)), limit_s, LOCK_AGAIN_S):
                    raise OSError(errno.ETIMEDOUT, f"somebody keeps its lock for {limit_s:.0f} s", str(path))
                if _is_still(path, lock):
                    yield path
                    return


def _opened(path: Path) -> IO[str]:
    return path.open("a", encoding="utf-8")


def _is_ours(folder: Path) -> bool:
    """Return whether a stage of this machine made it, or nobody for so long that no job lives: locks of other nodes may
    not be seen from here."""
    is_old = time.time() - folder.stat().st_mtime > OTHERS_AGE_S
    return is_old or folder.name.startswith(f"{socket.gethostname()}-")


def _is_unused(path: Path) -> bool:
    try:
        return path.suffix == TEMPORARY or path.stat().st_nlink == 1
    except FileNotFoundError:
        return False


def _is_still(path: Path, lock: IO[str]) -> bool:
    try:
        return path.stat().st_ino == os.fstat(lock.fileno()).st_ino
    except FileNotFoundError:
        return False
