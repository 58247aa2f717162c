"""No test module is a library of another."""

import ast
from pathlib import Path

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
