"""Faces of packages that cost nothing to import: a name is loaded when it is first asked for (PEP 562)."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_names(package: str, names: dict[str, str]) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package that exports `names`: {name: module below it}.

    The package states the same imports under `TYPE_CHECKING`, for type checkers and editors; tests/test_layout.py holds
    both to each other. No exported name may be the name of a module below the package: importing that module would
    replace it. As in SPEC 1 of Scientific Python, without a dependency.

    Raises:
        AttributeError: from the returned `__getattr__`, for a name that the package does not export.
    """
    face = sys.modules[package]

    def load(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{names[name]}"), name)
        setattr(face, name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(face), *names})

    return list(names), load, list_names
