"""A digest of the code that a function or class depends on.

It is of the syntax without comments, docstrings and layout, so that what changes no result repeats no stage. It covers
the function or class, what it names at the top of its module, and what that imports from modules beside it; libraries
that are installed are no part of it, as they are none of any stage's identity.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from kdgat.experiment.declaration import ExperimentError
from kdgat.experiment.source import PACKAGE, Source, local_imports

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS: Final = (ast.Import, ast.ImportFrom)
NOTHING: Final = "\0"  # no name: of a file that is imported for others, what defines nothing is done nevertheless


def code_digest(found: Any, source: Source) -> str:
    """Return the digest of what a function or class of a source depends on, 64 hex digits.

    Raises:
        ExperimentError: for what has no name at the top of a file, as a lambda or a function within another.
    """
    given: list[Any] = []
    while isinstance(found, partial):
        given.append((found.args, sorted(found.keywords.items())))
        found = found.func
    found = inspect.unwrap(found)
    name, file = getattr(found, "__qualname__", "<"), None
    if "<" not in name and " at 0x" not in repr(given):
        file = inspect.getsourcefile(found)
    if file is None:
        raise ExperimentError(
            f"{found!r}: nobody can tell when it changes: write a def or a class at the top of a file"
        )
    digest = _digest(Path(file).absolute(), name.partition(".")[0], source)
    return hashlib.sha256(f"{digest}{given}".encode()).hexdigest() if given else digest


@lru_cache(maxsize=64)
def _digest(file: Path, name: str, source: Source) -> str:
    parts = sorted(set(_Reach(source).of(file, name)))
    return hashlib.sha256("\n".join(f"{where}: {text}" for where, text in parts).encode()).hexdigest()


class _Reach:
    """What a name depends on, each part once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: set[tuple[Path, str]] = set()
        self._trees: dict[Path, ast.Module] = {}

    def of(self, file: Path, name: str) -> Iterator[tuple[str, str]]:
        """Yield (where, syntax) of a name at the top of a file and of all it needs; of a whole file for "" as name."""
        if (file, name) in self._seen:
            return
        self._seen.add((file, name))
        for statement in self._tree(file).body:
            defined = set(_defined(statement))
            if isinstance(statement, _IMPORTS):
                yield from self._of_imports(file, statement, name)
                continue
            # What defines nothing may change everything, as torch.set_default_dtype does.
            if _is_of_scripts(statement) or (name and defined and name not in defined):
                continue
            yield file.name, ast.dump(statement)
            for node in ast.walk(statement):
                if isinstance(node, _IMPORTS):  # within a function
                    yield from self._of_imports(file, node, "")
                elif name and isinstance(node, ast.Name):
                    yield from self.of(file, node.id)

    def _of_imports(self, file: Path, statement: ast.stmt, name: str) -> Iterator[tuple[str, str]]:
        for local, inner, here in local_imports(file, statement, self._source.texts):
            yield from self.of(local, inner if not name or here in (name, "*") else NOTHING)
            if (init := local.with_name(PACKAGE)) != local and str(init) in self._source.texts:
                yield from self.of(init, NOTHING)

    def _tree(self, file: Path) -> ast.Module:
        if file not in self._trees:
            tree = ast.parse(self._source.text(file))
            for node in ast.walk(tree):
                if isinstance(node, (*_DEFINITIONS, ast.Module)) and ast.get_docstring(node, clean=False) is not None:
                    node.body = node.body[1:] or [ast.Pass()]
            self._trees[file] = tree
        return self._trees[file]


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.For | ast.While | ast.With) or getattr(statement, "decorator_list", None):
        return  # it may change anything, as a register
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
    elif isinstance(statement, _IMPORTS):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, _DEFINITIONS):
                yield node.name
            elif isinstance(node, _IMPORTS):  # tried
                yield from _defined(node)


def _is_of_scripts(statement: ast.stmt) -> bool:
    """Return whether a statement begins with `if __name__ ==`: what is imported does not do it."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )
