"""No test module is a library of another, and no module of the source imports itself in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

TESTS = Path(__file__).parent


def imported_test_modules(path: Path) -> list[str]:
    """Return the test modules that a file imports, at any depth."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [name for name in names if name.startswith("tests.") and name.rpartition(".")[2].startswith("test_")]
    return found


def test_no_file_imports_a_test_module() -> None:
    """What two test modules need is moved to tests/support, or to a module beside them."""
    found = {str(path.relative_to(TESTS)): imported_test_modules(path) for path in TESTS.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_no_import_comes_back_to_where_it_started() -> None:
    """Imports inside functions count, too: a circle that they hide is still one to the reader."""
    graph = grimp.build_graph("kdgat", "flows", exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # CycleError names the circle
