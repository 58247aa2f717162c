"""Compile kernels once per machine where that is possible, else once per process."""

import warnings
from collections.abc import Callable
from typing import Any

from kdgat.base.machine_code import njit


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a kernel with numba's `njit(cache=True)`, and without the cache where there is no place for one.

    It runs without Python's global lock: other threads go on during a solve. Kernels own all that they write to.

    numba keeps machine code beside the source or in the user's cache directory (or in NUMBA_CACHE_DIR), and refuses to
    load a module if it may write to none of them, as in a read-only container without a home.
    """
    if function is None:
        return lambda decorated: compiled(decorated, **options)
    options.setdefault("nogil", True)
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        warnings.warn(
            f"kernels of {function.__module__} are compiled anew by every process (about 10 s): there is no directory "
            "for their machine code; set NUMBA_CACHE_DIR to one that may be written",
            stacklevel=2,
        )
        return njit(**options)(function)
