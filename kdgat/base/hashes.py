"""sha256 of files that were hashed before, known again by what the filesystem says of them: stores have gigabytes."""

import json
import logging
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

from kdgat.base.errors import UserError
from kdgat.base.files import is_gone, not_answered, sha256_of_file, to_json, write_snapshot
from kdgat.base.kept import SCHEMA_KEY, refuse_newer

logger = logging.getLogger(__name__)

SETTLED_S: Final = 2.0  # a file that was changed later than this may be changed again without another time
GONE: Final = "gone"
Signature = tuple[int, int, int, int]


def signature_of(path: Path) -> Signature:
    """Return inode, size, and the times of the last change of content and of anything; all nodes see the same."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class KnownHashes:
    """The hashes in a JSON file: {path relative to its folder: {signature, sha256}}.

    Only the owner of the folder writes it. Nothing is resumed from it, and what is missing is computed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known, self._is_ours = _read(path)

    def find(self, file: Path) -> str | None:
        """Return the hash of a file that has not changed since it was noted."""
        entry = self._known.get(self._name(file))
        return entry[1] if entry is not None and entry[0] == signature_of(file) else None

    def change(self, file: Path) -> str:
        """Say how a file differs from what its writer noted: "gone", "cut short", "changed"; empty where it does not.

        One of which nothing was noted is only asked for.

        Raises:
            OSError: of one that cannot be asked about or read, which is no change: it is to be asked again.
        """
        noted = self._known.get(self._name(file))
        try:
            signature = signature_of(file)
            if noted is None or noted[0] == signature:
                return ""
            with file.open("rb") as opened:  # by name NFS may answer what was a minute ago; who opens asks the server
                num_bytes = os.fstat(opened.fileno()).st_size
            if num_bytes != noted[0][1]:
                return "cut short" if num_bytes < noted[0][1] else "changed"
            return "" if sha256_once(file) == noted[1] else "changed"  # copies have other inodes and times
        except (FileNotFoundError, NotADirectoryError) as error:
            if is_gone(file):
                return GONE
            raise not_answered(file) from error

    def sha256(self, file: Path, *, is_finished: bool = False) -> str:
        """Return the hash, and note it; `is_finished` says that whoever writes the file has just done so."""
        found = self.find(file)
        if found is None:
            signature = signature_of(file)
            is_settled = is_finished or has_settled(signature)
            found = sha256_of_file(file)
            if is_settled and signature_of(file) == signature:
                self._known[self._name(file)] = (signature, found)
        return found

    def write(self) -> None:
        """Write the file, if there is anything to know, and no newer kdgat has written it."""
        content = {name: {"signature": one[0], "sha256": one[1]} for name, one in sorted(self._known.items())}
        if content and self._is_ours:
            write_snapshot(self.path, to_json(content))

    def _name(self, file: Path) -> str:
        return os.path.relpath(file, self.path.parent)


def _read(path: Path) -> tuple[dict[str, tuple[Signature, str]], bool]:
    """Return what is known, and whether the file may be written anew."""
    try:
        content = json.loads(path.read_bytes())
        refuse_newer(content, path)
        files = {name: one for name, one in content.items() if name != SCHEMA_KEY}
        return {name: (_signature(*one["signature"]), str(one["sha256"])) for name, one in files.items()}, True
    except FileNotFoundError:
        return {}, True
    except UserError as error:
        logger.warning("%s; files are hashed again", error)
        return {}, False
    except (OSError, ValueError, LookupError, ArithmeticError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read, files are hashed again: %s", path, error)
        return {}, True


def _signature(inode: int, size: int, changed: int, touched: int) -> Signature:
    return int(inode), int(size), int(changed), int(touched)


def has_settled(signature: Signature) -> bool:
    """Return whether a file was last changed so long ago that another change would show in its times."""
    return time.time() - max(signature[2:]) / 1e9 > SETTLED_S


def sha256_once(file: Path) -> str:
    """Return the hash of a file, computed once in this process for as long as the file stays as it is."""
    signature = signature_of(file)
    return _hash(file, signature) if has_settled(signature) else sha256_of_file(file)


@lru_cache(maxsize=10_000)
def _hash(file: Path, signature: Signature) -> str:
    return sha256_of_file(file)
