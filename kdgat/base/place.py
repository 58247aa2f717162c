"""Where results are to be written: looked at before anything is computed, with errors that say what to do."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from kdgat.base.errors import UserError
from kdgat.base.text import MIB

RUN_BYTES: Final = 16 << 20  # an output directory without a checkpoint takes some: logs, Prefect's database, a report
FILE_BYTES: Final = 64 << 10
_ADVICE: Final = {
    errno.ENOSPC: "the disk is full: free some space, or choose another place, and give the same command again",
    errno.EDQUOT: "your quota is used up: free some space, or choose another place, and give the same command again",
    errno.EROFS: "its filesystem is read-only: choose another place",
    errno.EACCES: "you may not do that there (permission denied): choose another place, or change its mode",
    errno.EPERM: "you may not do that there (not permitted): choose another place",
    errno.ENOENT: "there is no such file or folder: check the path",
    errno.ENOTDIR: "a part of this path is a file, not a folder: check the path",
    errno.EISDIR: "that is a folder: name a file",
    errno.ENAMETOOLONG: "that name is too long: choose a shorter one",
    errno.ELOOP: "its symbolic links lead in a circle: check the path",
}


def check_folder(path: Path, option: str, room: int = RUN_BYTES) -> None:
    """Refuse a folder that cannot be written to, whether it is there or is to be made.

    Args:
        path: the folder.
        option: what somebody gave it by, as --out.
        room: bytes that have to be free on its filesystem.

    Raises:
        UserError: if the path is a file or lies below one, or nothing (or not enough) can be written there.
    """
    _check(path, option, room, is_folder=True)


def check_file(path: Path, option: str, room: int = FILE_BYTES) -> None:
    """Refuse a file that cannot be written; a folder that is missing is made by whoever writes it.

    Raises:
        UserError: as of `check_folder`, and if the path is a folder.
    """
    _check(path, option, room, is_folder=False)


def describe_os_error(error: OSError) -> str:
    """Say in one line which file or folder is concerned, what is wrong with it, and what to do.

    >>> describe_os_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "missing/a.json"))
    'missing/a.json: there is no such file or folder: check the path'
    """
    advice = _ADVICE.get(error.errno or 0) or (error.strerror or str(error)).lower()
    return f"{os.fsdecode(error.filename)}: {advice}" if error.filename is not None else str(error)


def _check(path: Path, option: str, room: int, *, is_folder: bool) -> None:
    if "\0" in str(path):
        raise UserError(f"{option} {str(path)!r}: no name of a file holds a zero byte: choose another one")
    named = f"{option} {path}"
    try:
        path = path.absolute()
        if path.is_file() and is_folder:
            raise UserError(f"{named} is a file: name a folder, which is made if it is not there")
        if path.is_dir() and not is_folder:
            raise UserError(f"{named} is a folder: name a file in it")
        above = path if path.is_dir() else next(folder for folder in path.parents if os.path.lexists(folder))
        if not above.is_dir():
            raise UserError(f"{named}: {above} is no folder, so nothing can be made below it: choose another path")
        free = os.statvfs(above)
        if free.f_bavail * free.f_frsize < room:
            raise UserError(
                f"{named}: {free.f_bavail * free.f_frsize / MIB:.1f} MB are free there, and at least "
                f"{room / MIB:.2g} MB are needed: free some space, or choose another place"
            )
        if path.is_char_device() or path.is_fifo():
            return  # /dev/stdout, a named pipe: nothing takes its place
        with tempfile.TemporaryFile(dir=above) as probe:  # without a name where the filesystem can do that
            probe.write(bytes(min(room, FILE_BYTES)))
            probe.flush()
    except OSError as error:
        raise UserError(f"{named}: {_ADVICE.get(error.errno or 0) or str(error).lower()}") from error
