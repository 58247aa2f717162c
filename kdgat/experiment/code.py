"""The file of an experiment: how it is imported, and a digest of the code that a function or class depends on.

A digest is of the syntax without comments, docstrings and layout, so that what changes no result repeats no stage. It
covers the function or class, what it names at the top of its module, and what that imports from modules beside it;
libraries that are installed are no part of it, as they are none of any stage's identity.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kdgat.experiment.declaration import Experiment, ExperimentError

SUFFIX: Final = ".py"
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def load_experiment(source: str) -> Experiment:
    """Import the file, or module, and return its experiment; a file that has changed is imported anew.

    Raises:
        ExperimentError: if it is not there or holds none, or several without one called `experiment`.
    """
    if not source.endswith(SUFFIX):
        return _of_module(source)
    path = Path(source)
    if not path.is_file():
        raise ExperimentError(f"source {source} is no file: name the one that holds the Experiment")
    return _of_file(path.resolve(), _signature(path.parent.resolve()))


def code_digest(found: Any) -> str:
    """Return the digest of what a function or class depends on, 64 hex digits."""
    while isinstance(found, partial):
        found = found.func
    file, name = inspect.getsourcefile(found), found.__qualname__.partition(".")[0]
    if file is None:
        raise ExperimentError(f"{name} has no source file: define it in one")
    parts = sorted(_reached(Path(file).resolve(), name, set(), {}))
    return hashlib.sha256("\n".join(f"{where}: {text}" for where, text in parts).encode()).hexdigest()


def _of_module(source: str) -> Experiment:
    name, _, attribute = source.partition(":")
    try:
        found = getattr(importlib.import_module(name), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise ExperimentError(f"source {source}: there is no module {error.name}: install it, or name a file") from None
    if not isinstance(found, Experiment):
        raise ExperimentError(f"source {source}: {name} has no Experiment of the name {attribute!r}")
    return found


def _signature(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return what tells that a Python file of a folder has changed."""
    stats = ((path.name, path.stat()) for path in sorted(folder.glob(f"*{SUFFIX}")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


@lru_cache(maxsize=8)
def _of_file(path: Path, signature: tuple[tuple[str, int, int], ...]) -> Experiment:
    for name, module in list(sys.modules.items()):  # of an earlier state of the folder
        file = getattr(module, "__file__", None)
        if file and Path(file).parent == path.parent and "." not in name and name != "__main__":  # no package's
            del sys.modules[name]
    module = _imported(path)
    found = {name: one for name, one in vars(module).items() if isinstance(one, Experiment)}
    if "experiment" not in found and len(found) != 1:
        what = f"several Experiments ({', '.join(found)})" if found else "no Experiment"
        raise ExperimentError(f"source {path} has {what}: write `experiment = Experiment(Net, data)` at its end")
    return found.get("experiment") or next(iter(found.values()))


def _imported(path: Path) -> ModuleType:
    """Import a file under a name that no other module has; it can import what lies beside it, as a script can."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        importlib.invalidate_caches()
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ExperimentError(f"source {path}: line {error.lineno}: {error.msg}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _reached(
    file: Path, name: str, seen: set[tuple[Path, str]], trees: dict[Path, ast.Module]
) -> Iterator[tuple[str, str]]:
    """Yield (where, syntax) of a name at the top of a file and of all it needs; of a whole file where `name` is ""."""
    if (file, name) in seen:
        return
    seen.add((file, name))
    if file not in trees:
        trees[file] = _parsed(file)
    for place, statement in enumerate(trees[file].body):
        defined = set(_defined(statement))
        if isinstance(statement, ast.Import | ast.ImportFrom):
            if not name or name in defined:
                yield from _reached_imports(file, statement, name, seen, trees)
            continue
        if name and defined and name not in defined:
            continue
        if not name or defined:
            yield (f"{file.name} {'' if defined else place}", ast.dump(statement))
        for needed in {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} if name else ():
            if defined and not hasattr(builtins, needed):
                yield from _reached(file, needed, seen, trees)


def _reached_imports(
    file: Path,
    statement: ast.Import | ast.ImportFrom,
    name: str,
    seen: set[tuple[Path, str]],
    trees: dict[Path, ast.Module],
) -> Iterator[tuple[str, str]]:
    for alias in statement.names:
        if name and name != (alias.asname or alias.name.partition(".")[0]):
            continue
        if isinstance(statement, ast.Import):
            if (local := _local(file, alias.name, 0)) is not None:
                yield from _reached(local, "", seen, trees)
        elif (
            inner := _local(file, ".".join(filter(None, (statement.module, alias.name))), statement.level)
        ) is not None:
            yield from _reached(inner, "", seen, trees)  # a module of a package
        elif (local := _local(file, statement.module or "", statement.level)) is not None:
            yield from _reached(local, "" if alias.name == "*" else alias.name, seen, trees)


def _local(file: Path, module: str, level: int) -> Path | None:
    """Return the file of a module that lies beside the one that imports it, or in its package; else None."""
    folder = file.parent
    if level:
        folders = [folder.parents[level - 2] if level > 1 else folder]
    else:
        folders = [folder, *(above for above in folder.parents if (above / "__init__.py").is_file() or above == folder)]
        folders += [above.parent for above in folders if (above / "__init__.py").is_file()]
    for base in folders:
        path = base.joinpath(*module.split(".")) if module else base
        for candidate in (path.with_suffix(SUFFIX) if module else path / "__init__.py", path / "__init__.py"):
            if candidate.is_file() and "site-packages" not in candidate.parts:
                return candidate
    return None


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    else:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, _DEFINITIONS):
                yield node.name


def _parsed(file: Path) -> ast.Module:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (*_DEFINITIONS, ast.Module)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree
