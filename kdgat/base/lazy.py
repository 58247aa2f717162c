"""Faces of packages that cost nothing to import: a name is loaded when it is first asked for (PEP 562)."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from typing import Any


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package that exports what it imports under `TYPE_CHECKING`.

    Type checkers and editors read the same imports. No exported name may be the name of a module below the package:
    importing that module would replace it. As in SPEC 1 of Scientific Python (lazy_loader's `attach_stub`), without a
    dependency.

    Raises:
        AttributeError: from the returned `__getattr__`, for a name that the package does not export.
    """
    face = sys.modules[package]
    blocks = [node for node in ast.parse(getsource(face)).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(face, name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(face), *modules})

    return list(modules), load, list_names
