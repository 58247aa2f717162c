"""What a person is told while numba compiles: a first call on a machine takes some fifteen seconds without a line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

COMPILING: Final = "compiling for this machine: some 15 s, and seldom again, because the result is kept"


@contextmanager
def compilation_told(*, quiet: bool) -> Iterator[None]:
    """Print one line on standard error as soon as numba compiles within the context, instead of reading its cache.

    numba is imported here: enter this only where it is needed anyway.
    """
    if quiet:
        yield
        return
    from numba.core import event

    class Teller(event.Listener):
        has_told = False

        def on_start(self, event: object) -> None:
            if not self.has_told:
                self.has_told = True
                print(COMPILING, file=sys.stderr, flush=True)

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Teller()):
        yield
