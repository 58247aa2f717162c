"""What the source imports, read from its text: at any depth, for type checkers too, and through lazy faces."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("kdgat", "flows")


class Import(NamedTuple):
    """A module, or a package's face, that a statement imports, with the names taken from it."""

    importer: str
    target: str
    names: tuple[str, ...]
    is_for_types: bool


class Source:
    """The modules of kdgat and flows, by dotted name; a package stands for its face, `__init__.py`."""

    def __init__(self, root: Path = ROOT) -> None:
        paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
        self.paths = {dotted_name(path.relative_to(root)): path for path in paths}
        self.texts = {name: path.read_text(encoding="utf-8") for name, path in self.paths.items()}
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}
        self.lazy_faces = {
            name: table for name, tree in self.trees.items() if self.is_face(name) and (table := lazy_table(name, tree))
        }
        self.imports = [one for name, tree in self.trees.items() for one in self._imports(name, tree)]

    def is_face(self, name: str) -> bool:
        return self.paths[name].name == "__init__.py"

    def folder(self, name: str) -> str:
        return name if self.is_face(name) else name.rpartition(".")[0]

    def graph(self, *, for_types: bool) -> dict[str, set[str]]:
        """Return what each module imports. A lazy face imports nothing: who takes a name from it imports its module."""
        edges: dict[str, set[str]] = {name: set() for name in self.paths}
        for one in self.imports:
            if one.importer in self.lazy_faces or (one.is_for_types and not for_types):
                continue
            table = self.lazy_faces.get(one.target)
            targets = {one.target}
            if table is not None:
                targets = {f"{one.target}.{table[name]}" for name in one.names if name in table}
            edges[one.importer] |= targets - {one.importer}
        return edges

    def _imports(self, importer: str, tree: ast.Module) -> Iterator[Import]:
        for node, is_for_types in import_statements(tree):
            if isinstance(node, ast.Import):
                found: dict[str, list[str]] = {alias.name: [] for alias in node.names}
            else:
                assert node.level == 0, f"{importer}: no relative imports"
                found = {}
                lazy = self.lazy_faces.get(str(node.module), {})  # a name there may be that of its module
                for alias in node.names:
                    below = f"{node.module}.{alias.name}"
                    if below in self.paths and alias.name not in lazy:
                        found.setdefault(below, [])
                    else:
                        found.setdefault(str(node.module), []).append(alias.name)
            for target, names in found.items():
                if target in self.paths:
                    yield Import(importer, target, tuple(names), is_for_types)


def dotted_name(path: Path) -> str:
    """Return the name that `path`, relative to the root, is imported by."""
    return ".".join(path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts)


def import_statements(tree: ast.AST, is_for_types: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return all import statements, and whether each is for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, is_for_types
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from import_statements(ast.Module(node.body, []), True)
            yield from import_statements(ast.Module(node.orelse, []), is_for_types)
        else:
            yield from import_statements(node, is_for_types)


def lazy_table(package: str, tree: ast.Module) -> dict[str, str] | None:
    """Return the names that a lazy face imports for type checkers, each with the module below it; None of another."""
    calls = [node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    if not any(ast.unparse(call.func).rpartition(".")[2] == "lazy_names" for call in calls):
        return None
    return {
        alias.asname or alias.name: str(node.module).removeprefix(f"{package}.")
        for node, is_for_types in import_statements(tree)
        if is_for_types and isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of modules each of which imports, directly or not, all others of its group.

    >>> circles({"a": ["b"], "b": ["a", "c"], "c": []})
    [['a', 'b']]
    """
    reached: dict[str, set[str]] = {}
    for start in graph:
        found: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += graph[name]
        reached[start] = found
    groups = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(list(group) for group in groups if group)
