"""Machine code of kernels, which numba keeps between processes: never another version's, never another signature's.

numba compiles a kernel anew when the file that it is in has changed. What is compiled into it from other files does not
count: after an update, kernels of two versions would hand each other arrays that do not fit. Here the sources of all
that a kernel's module imports of the package count. And two processes that compile one kernel for arguments of
different types at the same time could swap their code; here each has a file of its own. Options that a kernel does not
name itself, and takes from whoever calls it first, do not count: name those on which a result depends.

What numba loads for a process's first kernel is loaded here, without scipy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import logging
import os
import re
import stat
import sys
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from numba import njit
from numba.core import caching

import kdgat
from kdgat.base.lazy import exports_of

__all__ = ["UNCOUNTED", "compiled", "njit"]

# numba counts references to an array whenever it is sliced or handed to a function that is inlined, by an atomic
# instruction: of features of CAN, dozens for a message took more than half of the time. A kernel that makes no array
# and returns none needs no counts. What it alone calls is compiled without them, too, and numba refuses what makes one.
UNCOUNTED: Final[dict[str, Any]] = {"_nrt": False}
"""Options of a kernel that counts no references."""

ROOTS: Final = {"kdgat": Path(kdgat.__file__).parent}  # package -> folder
SCIPY_BLAS: Final = ("scipy.linalg", "scipy.linalg.cython_blas")
OLD_S: Final = 3600.0  # from which on code of other sources is removed: another process may still be writing its own
logger = logging.getLogger(__name__)
_OURS: Final = "all sources "
_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*\)|.*)|import[ \t]+([\w.]+))", re.MULTILINE
)


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a kernel with numba's `njit(cache=True)`, and without the cache where there is no place for one.

    It runs without Python's global lock: other threads go on during a solve. Kernels own all that they write to.

    numba keeps machine code in NUMBA_CACHE_DIR, beside the source, or in the user's cache directory; no module loads
    if it may write to none of them; here a folder of the user's among temporary files comes last.
    """
    if function is None:
        return lambda decorated: compiled(decorated, **options)
    options.setdefault("nogil", True)
    options.setdefault("fastmath", False)  # else its first caller says whether it may meet NaN
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


@cache
def sources_digest(path: Path) -> str:
    """Return what tells the sources apart that kernels of a module are made of: its own and those that it imports."""
    found: dict[Path, str] = {}
    left = [path]
    while left:
        one = left.pop()
        if one not in found:
            found[one], imported = _read(one)
            left += imported
    return _hash(" ".join(f"{one.name} {found[one]}" for one in sorted(found)).encode())


@cache
def _read(path: Path) -> tuple[str, tuple[Path, ...]]:
    """Return the hash of a file, and the files that it imports."""
    content = path.read_bytes()
    return _hash(content), tuple(_imported(content.decode()))


def _hash(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _imported(source: str) -> Iterator[Path]:
    """Yield the files of the modules that a text imports of packages that are looked at."""
    for module, names, alone in _IMPORT.findall(source):
        package, *inner = (module or alone).split(".")
        if package not in ROOTS:
            continue
        place = ROOTS[package].joinpath(*inner)
        face = place / "__init__.py"
        if not place.is_dir():
            yield place.with_suffix(".py")
        elif alone or not face.exists():
            yield from place.glob("*.py")
        else:  # a name of a lazy face comes from one module
            table = exports_of(face)
            if not table:
                yield face
            for name in re.findall(r"\w+", names):
                path = ROOTS[package].joinpath(*table[name].split(".")[1:]) if name in table else place / name
                if path.is_dir():
                    yield from path.glob("*.py")
                elif path.with_suffix(".py").exists():
                    yield path.with_suffix(".py")


def _stamp(locator: Any) -> Any:
    path = Path(locator._py_file)
    own = _stamp_of_numba(locator)
    return (own, _OURS + sources_digest(path)) if any(map(path.is_relative_to, ROOTS.values())) else own


def _save(file: Any, key: Any, data: Any) -> None:
    """Keep machine code: under a name that only this version and signature has, and before the index speaks of it."""
    if not (isinstance(file._source_stamp, tuple) and str(file._source_stamp[-1]).startswith(_OURS)):
        _save_of_numba(file, key, data)  # a kernel of another package
        return
    overloads = file._load_index()
    if not overloads:  # nothing, or an index of other sources: what they left is of no use
        for stale in Path(file._cache_path).glob(f"{Path(file._index_name).stem}.*.nbc"):
            with contextlib.suppress(FileNotFoundError):
                if stale.stat().st_mtime < time.time() - OLD_S:
                    stale.unlink()
    name = file._data_name(zlib.crc32(repr((file._source_stamp, key)).encode()))
    file._save_data(name, data)
    file._save_index({**overloads, key: name})


def _load_functions_of_arrays() -> None:
    """Import what numba knows of arrays, which asks whether there is scipy's BLAS, and be it by importing all of it.

    scipy.linalg takes longer than all kernels of a command. Here its place is held meanwhile: a kernel that multiplies
    matrices imports it when it is compiled or loaded. Not beside other threads, which may be importing it themselves.
    """
    is_alone = threading.active_count() == 1 and importlib.util.find_spec("scipy") is not None
    held = [name for name in SCIPY_BLAS if name not in sys.modules] if is_alone else []
    sys.modules.update({name: ModuleType(name) for name in held})
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        for name in held:
            del sys.modules[name]


class _TemporaryLocator(caching.UserWideCacheLocator):
    """Machine code of a user who may write neither beside the sources nor at home."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)  # type: ignore[no-untyped-call]
        self._cache_path = str(_own_folder() / self.get_suitable_cache_subpath(file))  # type: ignore[no-untyped-call]

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return a locator; None where there is no such folder."""
        try:
            return super().from_function(function, file)  # type: ignore[no-untyped-call]
        except OSError:
            return None


@cache
def _own_folder() -> Path:
    """Make a folder in which nobody else puts code that this process would run; OSError where that cannot be."""
    folder = Path(tempfile.gettempdir(), f"kdgat-numba-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    logger.warning("machine code is kept in %s: neither the installation nor the home can be written", folder)
    return folder


caching.FunctionCache._impl_class._locator_classes.append(_TemporaryLocator)
_stamp_of_numba: Any = caching._SourceFileBackedLocatorMixin.get_source_stamp
_save_of_numba: Any = caching.IndexDataCacheFile.save
caching._SourceFileBackedLocatorMixin.get_source_stamp = _stamp  # type: ignore[method-assign]
if list(inspect.signature(_save_of_numba).parameters) == ["self", "key", "data"]:  # as from 0.61 to 0.68
    caching.IndexDataCacheFile.save = _save  # type: ignore[method-assign]
_load_functions_of_arrays()
