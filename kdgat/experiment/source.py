"""The source of an experiment: its file and the modules beside it that it imports, as they were when they were read.

Stages carry the text with them: whoever edits a file while its jobs wait, or between two jobs of a stage, trains what
was planned. Modules keep their paths, so that what lies beside a file is found; what is installed is imported as it is.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import kdgat
from kdgat.experiment.declaration import Experiment, ExperimentError

SUFFIX: Final = ".py"
PACKAGE: Final = "__init__.py"
INSTALLED: Final = ("site-packages", "dist-packages")
SOURCE_KEY, FILES_KEY = "source", "files"  # of a spec's execution


@dataclass(frozen=True)
class Source:
    """What an experiment is imported from.

    Args:
        name: absolute path of a Python file, or `package.module:name`.
        files: (path, text) of each file of one's own that is imported; none where the module is installed.
    """

    name: str
    files: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, execution: Mapping[str, Any]) -> Source:
        """Return what the execution of a spec carries; of one that carries none yet, what is there."""
        name, files = execution[SOURCE_KEY], execution.get(FILES_KEY)
        return read_source(name) if files is None else cls(name, tuple(files.items()))

    def as_execution(self) -> dict[str, Any]:
        """Return what the execution of a spec carries of it."""
        return {SOURCE_KEY: self.name, FILES_KEY: self.texts}

    @cached_property
    def texts(self) -> dict[str, str]:
        """Return path -> text."""
        return dict(self.files)

    @property
    def entry(self) -> Path:
        """Return the file that is imported first."""
        return Path(self.files[0][0])

    @property
    def bases(self) -> list[Path]:
        """Return the folders below which names of modules begin: of a file its own, as of a script."""
        folder = self.entry.parent
        return [folder] if package_parent(folder) == folder else [folder, package_parent(folder)]

    def text(self, path: Path) -> str:
        """Return the text of a file as it was; of what is installed as it is."""
        return self.texts[str(path)] if str(path) in self.texts else path.read_text(encoding="utf-8-sig")


def read_source(name: str) -> Source:
    """Read a file, or module, and what it imports from beside it; ExperimentError if it is not there, or no Python."""
    known = _known.get(name)
    if known is not None and known[0] == _stats(known[1]):
        return known[1]
    entry = Path(name).absolute() if name.endswith(SUFFIX) else _file_of_module(name)
    if entry is None:
        return Source(name)
    if not entry.is_file():
        raise ExperimentError(f"source {name} is no file: name the one that holds the Experiment")
    texts: dict[str, str] = {}
    _read(entry, texts)
    source = Source(str(entry) if name.endswith(SUFFIX) else name, tuple(texts.items()))
    _known[name] = (_stats(source), source)
    return source


def load_experiment(source: Source) -> Experiment:
    """Import the source and return its experiment.

    Raises:
        ExperimentError: if it holds none, or several without one called `experiment`.
    """
    _Finder.install(source)
    return _loaded(source)


@lru_cache(maxsize=8)
def _loaded(source: Source) -> Experiment:
    if not source.name.endswith(SUFFIX):
        return _of_module(source.name)
    found = {name: one for name, one in vars(_imported(source)).items() if isinstance(one, Experiment)}
    if "experiment" not in found and len(found) != 1:
        what = f"several Experiments ({', '.join(found)})" if found else "no Experiment"
        raise ExperimentError(f"source {source.name} has {what}: write `experiment = Experiment(Net, data)` at its end")
    return found.get("experiment") or next(iter(found.values()))


def local_imports(file: Path, statement: ast.stmt, texts: Mapping[str, str]) -> Iterator[tuple[Path, str, str]]:
    """Yield (file, name in it or "" for all of it, name here) of what a statement imports from modules of one's own."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if (local := _local(file, alias.name, 0, texts)) is not None:
                yield local, "", alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            module, here = statement.module or "", alias.asname or alias.name
            inner = _local(file, ".".join(filter(None, (module, alias.name))), statement.level, texts)
            if inner is not None:
                yield inner, "", here  # a module of a package
            elif (local := _local(file, module, statement.level, texts)) is not None:
                yield local, "" if alias.name == "*" else alias.name, here


def package_parent(folder: Path) -> Path:
    """Return the folder that holds the outermost package of which a folder is part; itself if it is of none."""
    while (folder / PACKAGE).is_file():
        folder = folder.parent
    return folder


class _Finder(MetaPathFinder):
    """Finds the modules of a source, by their texts, before those that are installed."""

    def __init__(self, source: Source) -> None:
        self.source, self.texts, self.bases = source, source.texts, source.bases

    @classmethod
    def install(cls, source: Source) -> None:
        """Take the place of the source before, whose modules are forgotten."""
        for finder in [one for one in sys.meta_path if isinstance(one, cls)]:
            if finder.source == source:
                return
            sys.meta_path.remove(finder)
            for path in map(str, finder.bases):
                if path in sys.path:
                    sys.path.remove(path)  # what was put there; a person's own entry of the same folder stays
        for name, module in list(sys.modules.items()):
            if isinstance(getattr(module, "__loader__", None), _TextLoader) and not name.startswith(_ENTRY):
                del sys.modules[name]
        if source.files:
            finder = cls(source)
            sys.meta_path.insert(0, finder)
            sys.path[:0] = map(str, finder.bases)  # as a script has it, for what is imported by a computed name

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        for base in self.bases:
            place = base.joinpath(*fullname.split("."))
            for file in (place / PACKAGE, place.with_name(place.name + SUFFIX)):
                if str(file) in self.texts:
                    loader = _TextLoader(fullname, str(file), self.texts)
                    return importlib.util.spec_from_file_location(fullname, file, loader=loader)
        return None


class _TextLoader(SourceFileLoader):
    """Imports a file as it was when it was read."""

    def __init__(self, fullname: str, path: str, texts: Mapping[str, str]) -> None:
        super().__init__(fullname, path)
        self._texts = texts

    def exec_module(self, module: ModuleType) -> None:
        text = self._texts[self.path]  # for inspect, torch.jit and tracebacks, whatever the file holds by now
        linecache.cache[self.path] = (len(text), None, text.splitlines(keepends=True), self.path)
        super().exec_module(module)

    def get_data(self, path: str) -> bytes:
        return self._texts[path].encode() if path in self._texts else super().get_data(path)

    def path_stats(self, path: str) -> Any:
        raise OSError("no bytecode: it may be of another text")


_ENTRY: Final = "kdgat_experiment_"  # begins the names of files that are imported as experiments
_known: Final[dict[str, tuple[Any, Source]]] = {}


def _stats(source: Source) -> Any:
    """Return what tells that a file of a source has changed, or that one has come or gone beside it."""
    paths = {path for file, _ in source.files for path in (Path(file), Path(file).parent)}
    try:
        return [(path, stat.st_mtime_ns, stat.st_size) for path in sorted(paths) for stat in (path.stat(),)]
    except OSError:
        return None


def _read(file: Path, texts: dict[str, str]) -> None:
    """Add a file, the packages that it is in, and all that they import from beside them."""
    if str(file) in texts:
        return
    try:
        texts[str(file)] = file.read_text(encoding="utf-8-sig")
        statements = list(ast.walk(ast.parse(texts[str(file)])))
    except SyntaxError as error:
        raise ExperimentError(f"source {file}: line {error.lineno}: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"source {file} is not UTF-8: {error}") from error
    for package in file.parents:
        if not (package / PACKAGE).is_file():
            break
        _read(package / PACKAGE, texts)
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for local, _, _ in local_imports(file, statement, {}):
                _read(local, texts)


def _file_of_module(source: str) -> Path | None:
    """Return the file of `package.module:name`; None for one that is installed."""
    name = source.partition(":")[0]
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        spec = None
    if spec is None:
        raise ExperimentError(f"source {source}: there is no module {name}: install it, or name a file")
    file = Path(spec.origin or "")
    return None if spec.origin is None or not _is_ones_own(file) else file


def _of_module(source: str) -> Experiment:
    name, _, attribute = source.partition(":")
    found = getattr(importlib.import_module(name), attribute, None)
    if not isinstance(found, Experiment):
        raise ExperimentError(f"source {source}: {name} has no Experiment of the name {attribute!r}")
    return found


def _imported(source: Source) -> ModuleType:
    """Import a file under a name that no other text has."""
    digest = hashlib.sha256(repr(source.files).encode()).hexdigest()[:8]
    name = f"{_ENTRY}{source.entry.stem}_{digest}"
    loader = _TextLoader(name, str(source.entry), source.texts)
    spec = importlib.util.spec_from_file_location(name, source.entry, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def _local(file: Path, module: str, level: int, texts: Mapping[str, str]) -> Path | None:
    """Return the file of a module that lies beside the one that imports it, or in its package; else None."""
    folder = file.parent
    above = folder.parents[level - 2] if level > 1 else folder
    for base in [above] if level else [folder, package_parent(folder)]:
        place = base.joinpath(*module.split(".")) if module else base
        for candidate in (place / PACKAGE, *([place.with_name(place.name + SUFFIX)] if module else [])):
            if str(candidate) in texts or (candidate.is_file() and _is_ones_own(candidate)):
                return candidate
    return None


def _is_ones_own(file: Path) -> bool:
    """Return whether a file is neither installed nor part of kdgat, beside whose checkout people write theirs."""
    return not set(INSTALLED) & set(file.parts) and not file.is_relative_to(Path(kdgat.__file__).parent)
