"""Write files so that a reader, or the next process after a kill, sees old content or new, never half of one."""

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from kdgat.base.errors import UserError

logger = logging.getLogger(__name__)

HASH_BLOCK_BYTES = 1 << 20
_unwritten: set[Path] = set()  # snapshots whose last write failed


def write_bytes_atomically(
    path: Path,
    data: bytes | memoryview,
    *,
    durable: bool = True,
    before_rename: Callable[[], None] | None = None,
    mode: int = 0o666,
) -> None:
    """Replace `path` by `data` through a temporary file in the same directory.

    With `durable` both the file and its directory are fsynced, so the rename also survives a power cut; files that
    are only looked at while a process lives (progress) do without. `before_rename` may raise to keep the old file.
    `mode` has the permissions that the file gets, less the umask.
    """
    path = Path(path)
    with replacing(path) as temporary:
        # Nobody's file of this name, and no link: a folder that a group may write to could hold one.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if before_rename is not None:
            before_rename()
    if durable:
        sync_to_disk(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a temporary file that takes the place of `path` when the context ends well, and goes if not."""
    temporary = temporary_path(path)
    try:
        yield temporary
        put_in_place(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary), temporary):
            # A full disk does not say which file it had no place for, and the temporary one means nothing to anybody.
            error.filename = str(path)
        raise


def put_in_place(temporary: Path, path: Path) -> None:
    """Rename a file or folder that is there; if NFS does it twice, because an answer was lost, it is done.

    The second time finds nothing under the old name (ENOENT). What was renamed is known by its number, size and time.

    Raises:
        OSError: ESTALE where it is under neither name, which is no mistake of who wrote it.
    """
    before = _identity(temporary)
    try:
        temporary.replace(path)
    except FileNotFoundError as error:
        ask_anew(path.parent)  # that there was no such file is kept, too
        if before is None or _identity(path) != before:
            raise OSError(errno.ESTALE, f"{temporary.name} is gone before it was renamed", str(path)) from error


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return number, size and time of a file, None where it cannot be asked.

    It is opened for that, as NFS then asks the server; by name alone a client may answer what was a minute ago.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found.st_ino, found.st_size, found.st_mtime_ns


def write_snapshot(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file that nothing is resumed from: where it cannot be written, that is one warning and ends nothing.

    Its writer has all of the content, and writes it again with the next change.
    """
    try:
        write_bytes_atomically(path, data, durable=durable)
    except OSError as error:
        _warn_once(path, error)
    else:
        _unwritten.discard(path)


def append_lines(path: Path, lines: bytes) -> None:
    """Append lines, durably; the first begins on a line of its own, also after one that was cut short."""
    with path.open("ab+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        file.write(lines if file.read(1) in (b"", b"\n") else b"\n" + lines)
        file.flush()
        os.fsync(file.fileno())


def append_snapshot(path: Path, lines: bytes) -> bool:
    """Append lines to a file that nothing is resumed from; one warning and False where it cannot be written."""
    try:
        append_lines(path, lines)
    except OSError as error:
        _warn_once(path, error)
        return False
    _unwritten.discard(path)
    return True


def make_folder(path: Path) -> bool:
    """Make a folder for such files; where that cannot be, that is one warning and False."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _warn_once(path, error)
        return False
    return True


def make_private_folder(path: Path, refused: int = 0o077) -> None:
    """Make a folder for its owner alone, at a place where everybody may make one, as in /tmp.

    PermissionError if there is a link, a folder of another user, or one with any of the permissions `refused`.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & refused:
        text = "is a link, of another user, or writable for everybody: remove it"
        raise PermissionError(errno.EPERM, text, str(path))


def _warn_once(path: Path, error: OSError) -> None:
    if path not in _unwritten:
        _unwritten.add(path)
        logger.warning("%s cannot be written, the next change tries again: %s", path, error)


def write_json_atomically(path: Path, value: object) -> None:
    """Write `value` as indented JSON, atomically; NaN is kept as NaN, as Python's own reader accepts it."""
    write_bytes_atomically(path, to_json(value))


def to_json(value: object) -> bytes:
    """Write down plain data as `write_json_atomically` does."""
    return (json.dumps(value, indent=2, default=str) + "\n").encode()


def temporary_path(path: Path) -> Path:
    """Name a temporary file for `path`: hidden, in the same directory, another one with each call.

    Host and process say who left it, and are no more: containers have the same ones, and threads write side by side.
    """
    owner = f"{socket.gethostname()}.{os.getpid()}"
    return path.with_name(f".{path.name}.{owner}.{secrets.token_hex(8)}.tmp")


def read_utf8(path: Path) -> str:
    """Read a text file that a person has written; UserError names the fix if it is none in UTF-8."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is text in UTF-16: save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is no text in UTF-8 (byte {error.start} is 0x{data[error.start]:02x}): save it as UTF-8"
        ) from error


def remove_temporary_files(directory: Path, others: Collection[Path] = ()) -> None:
    """Remove what killed writers left; only the owner of a directory may do so.

    Another process may be writing `others` at this moment: what stands beside them is left alone.
    """
    theirs = tuple(f".{path.name}." for path in others)
    for entry in directory.glob(".*.tmp"):
        if not entry.name.startswith(theirs):
            remove_tree(entry)


def remove_tree(path: Path) -> bool:
    """Remove a file, or a folder with all that is in it; False, and one warning, if some of it stays.

    NFS keeps a file that somebody has open under another name (`.nfs...`), and its folder with it (ENOTEMPTY, EBUSY).
    """
    errors: list[BaseException] = []
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=lambda _function, _name, info: errors.append(info[1]))
        else:
            path.unlink()
    except OSError as error:
        errors.append(error)
    stays = bool(errors) and (path.is_symlink() or not is_gone(path))
    if stays:
        logger.warning("%s stays until it can be removed: %s", path, errors[0])
    return not stays


def ask_anew(folder: Path) -> None:
    """Let NFS ask the server for the names in a folder, of which a client may answer what was a minute ago.

    To open a file is not enough where there was none, or where another node has replaced it: a client opens the one it
    knows by the name, not the name (NFSv4.1), and the server has the old one for as long as anybody has it open.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        next(entries, None)


def is_gone(path: Path) -> bool:
    """Tell whether a file is known to be gone: a folder above it can be listed, and has no such name.

    Listing asks the server, where NFS by name may answer what was a minute ago. Where folders are missing, too, in one
    that is empty, that may be a mount point without its mount.
    """
    path = below = Path(os.path.realpath(path))  # a link is gone with what it leads to
    while below != below.parent:
        try:
            names = {entry.name for entry in below.parent.iterdir()}
        except FileNotFoundError:
            below = below.parent
            continue
        except NotADirectoryError:  # a file took the folder's place
            return True
        except OSError:  # stale, or not ours to read
            return False
        return below.name not in names and (bool(names) or below == path)
    return False


def not_answered(path: Path) -> OSError:
    """Return the error of a file that is not found, and not known to be gone: a fault of the filesystem."""
    return OSError(errno.ESTALE, "it is not found, and not known to be gone", str(path))


def list_folder(folder: Path, pattern: str = "*") -> list[Path]:
    """List what a folder holds, by name; nothing where there is no folder.

    OSError where nobody can say it now: `Path.glob` takes such a folder for an empty one.
    """
    try:
        return sorted(path for path in folder.iterdir() if fnmatchcase(path.name, pattern))
    except FileNotFoundError:
        return []


def list_folders(folder: Path, pattern: str) -> list[Path]:
    """List what a folder and those below it hold, as `list_folder`; each folder is looked at once, and no file."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir()) for entry in entries)
    except FileNotFoundError:
        return []
    inner = [path for name, is_folder in found if is_folder for path in list_folders(folder / name, pattern)]
    return [*(folder / name for name, _ in found if fnmatchcase(name, pattern)), *inner]


def sync_to_disk(path: Path) -> None:
    """Force a file to disk, or the names inside a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some FUSE and CIFS filesystems cannot do it to a directory: what they write is where it will be.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path) -> str:
    """Hash a file in blocks; 64 hex digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
