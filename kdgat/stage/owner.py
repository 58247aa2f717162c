"""One writer per run directory: an advisory lock for this machine, a token for shared filesystems without locks."""

import errno
import fcntl
import json
import logging
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kdgat.stage.errors import OwnerLostError, RunDirectoryError, StageBusyError
from kdgat.stage.files import write_json_atomically

logger = logging.getLogger(__name__)

# Lustre without -o flock and some NFS servers answer these; then only the token guards the directory.
LOCKS_UNSUPPORTED = {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}


class Owner:
    """Proof of ownership: whoever wrote `owner.json` last owns the directory."""

    def __init__(self, owner_path: Path) -> None:
        self.path = owner_path
        self.token = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(8)}"

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
        """Raise OwnerLostError unless `owner.json` still holds this token."""
        found = read_owner(self.path)
        if found.get("token") != self.token:
            raise OwnerLostError(
                f"{self.path.parent} was taken over by pid {found.get('pid')} on {found.get('host')}: "
                "this process stops without writing to it"
            )

    def release(self) -> None:
        """Remove the token if it is still this one."""
        if read_owner(self.path).get("token") == self.token:
            self.path.unlink(missing_ok=True)


def read_owner(path: Path) -> dict[str, object]:
    """Read `owner.json`; empty if nobody owns the directory, or it cannot be told who does."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):  # a power cut may have left anything
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def own(lock_path: Path, owner_path: Path) -> Iterator[Owner]:
    """Own a run directory while the context lasts.

    Raises:
        StageBusyError: if a process on a machine that shares locks with this one owns it.
        RunDirectoryError: if nothing can be written there.
    """
    try:
        lock_file = lock_path.open("a")
    except OSError as error:
        raise RunDirectoryError(
            f"{lock_path.parent} cannot be written to ({error.strerror}): a stage keeps its log and checkpoints there; "
            "make it writable, or copy it to where it is"
        ) from error
    with lock_file:
        is_locked = True
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = read_owner(owner_path)
            raise StageBusyError(
                f"{owner_path.parent} is in use by pid {found.get('pid')} on {found.get('host')}: "
                "wait until it ends, or stop it (SIGTERM makes it write a checkpoint first)"
            ) from None
        except OSError as error:
            if error.errno not in LOCKS_UNSUPPORTED:
                raise
            is_locked = False
            logger.warning("no file locks on %s (%s): only the owner token guards it", owner_path.parent, error)
        owner = Owner(owner_path)
        owner.claim()
        try:
            yield owner
        finally:
            # Without a lock a successor's token could take the place of ours at this moment, and would be removed.
            if is_locked:
                owner.release()
