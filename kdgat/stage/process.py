"""The start and the end of a stage's process: fast, though it imports torch, and not later than its parent's."""

import atexit
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


@contextmanager
def garbage_kept() -> Iterator[None]:
    """Collect no garbage inside: imports make next to none, and looking for it is a fifth of their time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_garbage_at_exit() -> None:
    """Collect no garbage when this process ends, in the usual way.

    The interpreter looks for it, more than once, among all that was imported: a third of a second behind the last line.
    """
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def leave(status: int) -> NoReturn:
    """End this process at once; taking the libraries' objects apart one by one takes a second.

    What was printed and logged is written out. Nothing else is: files are to be closed, and children awaited, before.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a pipe that nobody reads, a stream that is closed
            stream.flush()
    os._exit(status)


PARENT_PROCESS_VARIABLE = "KDGAT_PARENT_PROCESS"
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def follow_parent_into_death() -> None:
    """Ask for a SIGTERM when the process that started us dies, so that no orphan trains on.

    Only where the parent asked for it by putting its process id into the environment. The signal is the same
    one a cluster sends at walltime: the trainer writes a checkpoint and leaves with status 75.
    """
    parent = os.environ.pop(PARENT_PROCESS_VARIABLE, None)
    if parent is not None and not signal_on_parent_death(signal.SIGTERM, int(parent)):
        os.kill(os.getpid(), signal.SIGTERM)


def signal_on_parent_death(number: signal.Signals, parent: int) -> bool:
    """Ask the kernel (Linux only) to send us a signal when our parent dies; False if it is dead already."""
    if not sys.platform.startswith("linux"):
        return True
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent  # looked at afterwards: it may have died before the kernel knew
