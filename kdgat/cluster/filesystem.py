"""What the filesystem of a folder does for runs: one check for each thing that stages, and who watches them, rely on.

Asked where a command runs, and on a compute node by a job (`kdgat.cluster.probe`).
"""

import errno
import fcntl
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from kdgat.base import write_bytes_atomically
from kdgat.base.locks import try_lock
from kdgat.base.text import describe_seconds
from kdgat.stage.owner import SILENCE_S

State = Literal["good", "missing", "warning", "wrong"]
FOLDER_PREFIX: Final = ".kdgat-doctor-"
NUM_WRITES: Final = 16  # how often a small file is replaced to learn how long that takes
SLOW_WRITE_S: Final = 0.5  # a checkpoint replaces three files, and lists are replaced at every change of state
LITTLE_SPACE_BYTES: Final = 1 << 30
CLOCK_TOLERANCE_S: Final = 5.0  # of a minute-long checkpoint margin and sign of life; NTP keeps milliseconds
GRANTED: Final = "granted"
BUSY: Final = "busy"
NO_LOCKS: Final = "no locks"
ANOTHER_FOLDER: Final = "choose another folder by --out"
NOTES_ALONE: Final = (
    f"two commands in one OUT are told apart by their notes alone, after {SILENCE_S:.0f} s: give a command on one "
    "machine at a time, or mount with locks (Lustre: -o flock; NFS: without nolock and local_lock)"
)


class Check(NamedTuple):
    """One line of an answer: `missing` is what only some commands need, `wrong` is what makes runs fail."""

    name: str
    state: State
    found: str
    fix: str = ""


def check_filesystem(out: Path) -> Iterator[Check]:
    """Try all that a run needs of the folder that is to hold it, or of the nearest one above that is there."""
    folder = nearest_folder(out)
    name = f"filesystem of {folder}"
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as made:
            yield from check_folder(Path(made), name)
    except OSError as error:
        yield Check(name, "wrong", f"{folder} cannot be written to: {error.strerror}", ANOTHER_FOLDER)


def nearest_folder(path: Path) -> Path:
    """Return a folder itself, or the nearest one above that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def check_folder(folder: Path, name: str) -> Iterator[Check]:
    """Try everything in an empty folder, first what has this name; what the system refuses is wrong."""
    checks: dict[str, Callable[[Path], Check]] = {
        name: _check_writing,
        "locks": _check_locks,
        "rename": _check_renaming,
        "fsync": _check_sync,
        "exclusive creation": _check_exclusive_creation,
        "clock of files": _check_clock,
    }
    for name, check in checks.items():
        try:
            yield check(folder)._replace(name=name)
        except OSError as error:
            yield Check(name, "wrong", f"{error.strerror} ({_errno_name(error)})", ANOTHER_FOLDER)


def ask_lock(file: IO[bytes], kind: int) -> str:
    """Ask for a lock without waiting: GRANTED, BUSY, NO_LOCKS, or the name of another error."""
    try:
        return {True: GRANTED, False: BUSY, None: NO_LOCKS}[try_lock(file, kind)]
    except OSError as error:
        return _errno_name(error)


def ask_both_locks(path: Path) -> list[str]:
    """Ask for an exclusive lock, then for a shared one on the same descriptor, as who wants to own a directory does."""
    with path.open("a+b") as file:
        return [ask_lock(file, fcntl.LOCK_EX), ask_lock(file, fcntl.LOCK_SH)]


def judge_locks(answers: Sequence[str], held_by: str) -> Check:
    """Tell what answers mean that were given while somebody else held an exclusive lock."""
    if set(answers) == {BUSY}:
        return Check("", "good", f"what {held_by} holds is busy for all others")
    if NO_LOCKS in answers:
        return Check("", "warning", "the filesystem has none", NOTES_ALONE)
    if GRANTED in answers:
        return Check("", "warning", f"what {held_by} holds is granted a second time", NOTES_ALONE)
    return _odd_answer(answers)


def _odd_answer(answers: Sequence[str]) -> Check:
    named = " and ".join(f"{kind}: {answer}" for kind, answer in zip(("exclusive", "shared"), answers, strict=True))
    fix = f"a command that meets the lock of another one would fail: {ANOTHER_FOLDER}"
    return Check("", "wrong", f"locks on one descriptor are answered by {named}", fix)


def _check_writing(folder: Path) -> Check:
    seconds = []
    for _ in range(NUM_WRITES):
        began = time.perf_counter()
        write_bytes_atomically(folder / "file", b"x" * 4096)
        seconds.append(time.perf_counter() - began)
    free, median = shutil.disk_usage(folder).free, statistics.median(seconds)
    text = f"{free / 1e9:.0f} GB free, {median * 1e3:.1f} ms for a safe write"
    if free < LITTLE_SPACE_BYTES:
        return Check("", "wrong", f"{free / 1e6:.0f} MB free", "make room, or choose another folder by --out")
    if median > SLOW_WRITE_S:
        return Check("", "wrong", text, "keep runs on a faster filesystem (scratch), or save less often")
    return Check("", "good", text)


def _check_locks(folder: Path) -> Check:
    path = folder / "lock"
    with path.open("a+b") as holder:  # locks are an open file's: a second one here stands for another process
        ask_lock(holder, fcntl.LOCK_EX)
        found = judge_locks(ask_both_locks(path), "one process")
    if found.state != "good":
        return found
    if set(free := ask_both_locks(path)) != {GRANTED}:  # both kinds are needed where nobody holds any
        return _odd_answer(free)
    return found


def _check_renaming(folder: Path) -> Check:
    old, new = folder / "old", folder / "new"
    old.write_bytes(b"old")
    with old.open("rb") as reader, new.open("wb") as writer:  # somebody reads what is replaced, or writes on
        writer.write(b"new")
        writer.flush()
        new.replace(old)
        writer.write(b"er")
        writer.flush()
        was = reader.read()
    if (was, old.read_bytes(), new.exists()) == (b"old", b"newer", False):
        return Check("", "good", "replaces a file that is read, by one that is written")
    return Check("", "wrong", "a file that was renamed over another has other content", ANOTHER_FOLDER)


def _check_sync(folder: Path) -> Check:
    with (folder / "synced").open("wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as `kdgat.base.sync_to_disk`
            raise
        found = f"of files, not of folders ({_errno_name(error)})"
        return Check("", "warning", found, "a power cut of the file server may cost the newest checkpoint, not the run")
    finally:
        os.close(descriptor)
    return Check("", "good", "of files and folders")


def _check_exclusive_creation(folder: Path) -> Check:
    path = folder / "only"
    path.open("xb").close()
    try:
        path.open("xb").close()
    except FileExistsError:
        return Check("", "good", "of two who make a file one is told that it is there")
    return Check("", "wrong", "a file that is there can be made a second time (O_EXCL)", ANOTHER_FOLDER)


def _check_clock(folder: Path) -> Check:
    path, before = folder / "now", time.time()
    write_bytes_atomically(path, b"x")
    written, after = path.stat().st_mtime, time.time()
    ahead_s = max(written - after, 0.0) or min(written - before, 0.0)
    text = f"{describe_offset(ahead_s)} this machine's"
    if abs(ahead_s) <= CLOCK_TOLERANCE_S:
        return Check("", "good", text)
    fix = "hashes of inputs are made anew, and nights take new recordings too early or late: set both clocks by NTP"
    return Check("", "warning", text, fix)


def describe_offset(ahead_s: float) -> str:
    """Say how far a clock is from another one."""
    if abs(ahead_s) < 1.0:
        return "within a second of"
    return f"{describe_seconds(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'}"


def _errno_name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error.errno))
