"""One writer per run directory: an advisory lock for this machine, a token for shared filesystems without locks."""

import fcntl
import json
import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from kdgat.base import wait_until, write_json_atomically
from kdgat.base.files import ask_anew, is_gone
from kdgat.base.locks import try_lock
from kdgat.stage.errors import TAKEN_OVER, OwnerLostError, RunDirectoryError, StageBusyError

logger = logging.getLogger(__name__)

BEAT_S: Final = 5.0
SILENCE_S: Final = 16.0  # some beats, of which one may be late
LOOK_S: Final = 0.2  # who only looks lets go at once; who came just now has written its name by then
LOOK_AGAIN_S: Final = 0.02


class Owner:
    """Proof of ownership: whoever wrote `owner.json` last owns the directory."""

    def __init__(self, owner_path: Path) -> None:
        self.path = owner_path
        self.token = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"
        self._was_unreadable = False

    def claim(self) -> None:
        """Write the token; an older owner that still runs finds it before its next checkpoint and stops."""
        write_json_atomically(
            self.path,
            {
                "token": self.token,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
            },
        )

    def check(self) -> None:
        """Raise OwnerLostError if `owner.json` holds another token, or is gone: who took over has ended.

        What cannot be read says nothing of owners: one warning, and it is asked again at the next write.
        """
        found = read_owner(self.path)
        if found is None:
            if not self._was_unreadable:
                logger.warning("whose %s is cannot be read: it counts as ours until it can", self.path.parent)
        elif found.get("token") != self.token:
            of_ended = "was taken over by a process that has ended"
            how = f"{TAKEN_OVER} {found.get('pid')} on {found.get('host')}" if found else of_ended
            raise OwnerLostError(f"{self.path.parent} {how}: this process stops without writing to it")
        self._was_unreadable = found is None

    def successor(self) -> str:
        """Say who has taken the directory over; nothing while nobody has, or it cannot be told."""
        found = read_owner(self.path) or {}
        if found.get("token") in (None, self.token):
            return ""
        return f"{self.path.parent} {TAKEN_OVER} {found.get('pid')} on {found.get('host')}"

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Show from time to time that this owner lives, to machines whose locks do not reach each other (`own`)."""
        is_over = threading.Event()

        def beat() -> None:
            while not is_over.wait(BEAT_S):
                with suppress(OSError):
                    if not self.successor():
                        os.utime(self.path)

        threading.Thread(target=beat, name="owner", daemon=True).start()
        try:
            yield
        finally:
            is_over.set()

    def release(self) -> None:
        """Remove the token if it is still this one; one that stays is that of a process that is gone."""
        if (read_owner(self.path) or {}).get("token") == self.token:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


def read_owner(path: Path) -> dict[str, object] | None:
    """Read `owner.json`; empty if nobody owns the directory, None if it cannot be told who does."""
    ask_anew(path.parent)
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):  # a power cut may have left anything
        return {} if is_gone(path) else None
    return content if isinstance(content, dict) else None


@contextmanager
def own(lock_path: Path, owner_path: Path, silence_s: float = 0.0) -> Iterator[Owner]:
    """Own a run directory while the context lasts.

    Locks may not reach from one machine to another (Lustre's localflock, NFS with local_lock), or not exist. Whoever
    wrote its name there, and is not known to be dead, has `silence_s` seconds to show that it lives: it is `beating`.

    Raises:
        StageBusyError: if a process on a machine that shares locks with this one owns it.
        RunDirectoryError: if nothing can be written there, or it cannot be told whether another process owns it.
    """
    try:
        lock_file = lock_path.open("ab+")  # to read, too: NFSv4 gives no shared lock on what is only written to
    except OSError as error:
        raise RunDirectoryError(
            f"{lock_path.parent} cannot be written to ({error.strerror}): a stage keeps its log and checkpoints there; "
            "make it writable, or copy it to where it is"
        ) from error
    with lock_file:
        is_locked = _locked(lock_file, owner_path, fcntl.LOCK_EX)
        owner = Owner(owner_path)
        if silence_s and _still_beats(owner_path, silence_s):
            raise _busy(owner_path)
        owner.claim()
        try:
            yield owner
        finally:
            # Without a lock a successor's token could take the place of ours at this moment, and would be removed.
            if is_locked:
                owner.release()


def require_free(lock_path: Path, owner_path: Path) -> None:
    """Refuse a directory that another process owns at this moment, and leave it as it is.

    Raises:
        StageBusyError, RunDirectoryError: as of `own`, which may still raise it: somebody may come in between.
    """
    try:
        lock_file = lock_path.open("rb")
    except OSError:  # nobody was there before; whether anything can be written there is another question
        return
    with lock_file:
        _locked(lock_file, owner_path, fcntl.LOCK_SH)  # closing the file lets it go


def _locked(lock_file: IO[bytes], owner_path: Path, kind: int) -> bool:
    """Lock a file; False where the filesystem has no locks, errors as of `own`."""

    def is_shared() -> bool:
        """Tell whether it is held by who only looks; who cannot be asked is taken for an owner."""
        try:
            return kind == fcntl.LOCK_SH or bool(try_lock(lock_file, fcntl.LOCK_SH))
        except OSError:
            return False

    try:
        is_taken = try_lock(lock_file, kind)
        # An owner stays: whoever wants to own it, too, hears so at once, as signals are not looked at meanwhile.
        if is_taken is False and is_shared():
            is_taken = wait_until(lambda: bool(try_lock(lock_file, kind)), LOOK_S, LOOK_AGAIN_S)
    except OSError as error:
        raise RunDirectoryError(
            f"{lock_file.name} cannot be locked ({error.strerror}), so nobody knows whether another process works "
            "there: its filesystem is in trouble, give the command again"
        ) from error
    if is_taken is None:
        logger.warning("no file locks on %s: only the owner token guards it", owner_path.parent)
        return False
    if is_taken:
        return True
    raise _busy(owner_path)


def _still_beats(path: Path, silence_s: float) -> bool:
    def written_at() -> int:
        try:
            with path.open("rb") as file:  # opened anew: NFS then asks the server
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return 0

    before, found = written_at(), read_owner(path)
    if found is not None and (
        "token" not in found or (found.get("host") == socket.gethostname() and not _is_process(found.get("pid")))
    ):
        return False
    return wait_until(lambda: written_at() not in (0, before), silence_s)


def _is_process(pid: object) -> bool:
    try:
        os.kill(int(str(pid)), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # of another user
        pass
    return True


def _busy(owner_path: Path) -> StageBusyError:
    found = read_owner(owner_path) or {}
    return StageBusyError(
        f"{owner_path.parent} is in use by pid {found.get('pid')} on {found.get('host')}: "
        "wait until it ends, or stop it (SIGTERM makes it write a checkpoint first)"
    )
