"""A lock on an open file, asked without waiting, whatever its filesystem makes of it."""

import errno
import fcntl
from typing import IO, Any, Final

# Lustre without -o flock and some NFS servers answer these.
_UNSUPPORTED: Final = {errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL}
# Linux says EAGAIN; byte-range locks, which network filesystems make of these, may say EACCES (fcntl(2)).
_BUSY: Final = {errno.EAGAIN, errno.EACCES}


def try_lock(file: IO[Any], kind: int = fcntl.LOCK_EX) -> bool | None:
    """Lock a file until it is closed: False if another process has it, None where the filesystem has no locks."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return True
