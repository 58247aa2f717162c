"""The start and the end of a process that imports torch: seconds that a job of minutes would rather train."""

import atexit
import gc
import logging
import os
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
