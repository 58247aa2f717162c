"""Faces of packages that cost nothing to import: a name is loaded when it is first asked for (PEP 562)."""

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_EXPORT: Final = re.compile(r"^    from ([\w.]+) import (\w+) as \2$", re.MULTILINE)


@cache
def exports_of(path: Path) -> dict[str, str]:
    """Return the names that the text of a lazy face exports, each with the module that it comes from."""
    return {name: module for module, name in _EXPORT.findall(path.read_text(encoding="utf-8"))}


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package that exports what it imports under `TYPE_CHECKING`.

    Those lines, `from module import name as name`, are for type checkers and editors, too: no name is said twice. No
    exported name may be the name of a module below the package: importing that module would replace it. As in SPEC 1 of
    Scientific Python, without a dependency.

    Raises:
        AttributeError: from the returned `__getattr__`, for a name that the package does not export.
    """
    face = sys.modules[package]
    names = exports_of(Path(str(face.__file__)))

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(names[name]), name)
        setattr(face, name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(face), *names} - {"TYPE_CHECKING", "lazy_names"})

    return list(names), load, list_names
