"""A sooner start of the program that detects, most of whose time on a short log is its imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# numba imports both to see whether it may compile inner products by BLAS, and calls of foreign functions. The kernels
# that detect have neither, and scipy.linalg takes a third of a second.
_NOT_NEEDED: Final = ("scipy.linalg.cython_blas", "cffi")
_THAT_LOOK: Final = ("numba.np.arraymath", "numba.core.typing.cffi_utils")


def import_compiler() -> None:
    """Import numba without what its kernels do not need here.

    For a program, not for a library: code that is compiled in this process later cannot call functions of cffi, and
    multiplies in `np.inner` and `np.kron` by loops. `np.dot` looks for BLAS itself. Nothing changes for other imports
    of scipy and cffi, nor where numba was imported before.
    """
    with _hidden(*_NOT_NEEDED):
        for name in _THAT_LOOK:
            importlib.import_module(name)


@contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """Let imports of modules fail that nobody has imported yet, for a while."""
    modules: dict[str, object] = sys.modules  # type: ignore[assignment]  # None is Python's way to say: there is none
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
