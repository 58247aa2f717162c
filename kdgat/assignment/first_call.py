"""The first call on a machine: whether the solver's machine code is there, and a process that makes it meanwhile.

    python -m kdgat.assignment.first_call       # compile now, for example when an image is built

numba keeps machine code in a cache, each kernel's in files that appear when they are complete. So a process that
compiles may be killed at any moment, and several may run side by side; a lock keeps that to one.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from kdgat.assignment import constant_background as background
from kdgat.assignment import core, dense, small

VARIABLE: Final = "KDGAT_LAP_COMPILE"
WAIT, MEANWHILE = "wait", "background"
KERNELS: Final = (small.solve_one, background.solve_listed, core.augment_core, dense.augment_dense)
LOCK: Final = "kdgat-compiling.lock"  # beside the machine code; holds the number of the process that compiles


class CompileSettingError(ValueError):
    """KDGAT_LAP_COMPILE has a value that nobody knows."""


def may_wait() -> bool:
    """Return whether the user asked to wait for the compiler at the first call; CompileSettingError."""
    setting = os.environ.get(VARIABLE, MEANWHILE)
    if setting not in (WAIT, MEANWHILE):
        raise CompileSettingError(f"{VARIABLE} is {setting!r}: {WAIT} or {MEANWHILE} are known")
    return setting == WAIT


def is_compiled() -> bool:
    """Return whether the solver's kernels are loaded, or in the cache for this processor and this source."""
    return all(map(_is_ready, KERNELS))


def _is_ready(kernel: Any) -> bool:
    if kernel.signatures or not hasattr(kernel, "_cache"):
        return True
    file = getattr(kernel._cache, "_cache_file", None)
    if file is None:  # no place for machine code
        return False
    processor = kernel.targetctx.codegen().magic_tuple()
    return any(processor in key for key in file._load_index())


def compile_meanwhile() -> bool:
    """Start a process of low priority that compiles and outlives this one; return False if there is no cache for it."""
    if getattr(KERNELS[0]._cache, "_cache_file", None) is None:
        return False
    subprocess.Popen(
        [sys.executable, "-m", __spec__.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return True


def compile_all() -> None:
    """Compile every kernel that `solve`, `solve_batch` and the seeds use, or load it from the cache."""
    import numpy as np

    from kdgat.assignment.batch import solve_batch
    from kdgat.assignment.exact import solve

    rng = np.random.default_rng(0)
    square, wide = rng.random((40, 40)), rng.random((40, 50))
    solve(square)
    solve(np.where(rng.random((200, 200)) < 0.05, 0.5, 1.0))
    solve(wide, method="core")
    solve(wide, method="dense")
    solve(square, np.zeros(40), np.zeros(40), method="core")
    solve(rng.integers(1, 3, (60, 60)), method="core")
    solve_batch([square])


def main() -> None:
    """Compile, unless another process does so."""
    directory = Path(KERNELS[0].stats.cache_path or ".")
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        os.nice(10)
        compile_all()


if __name__ == "__main__":
    main()
