"""No test module is a library of another, no module imports itself in a circle, and what is counted only falls."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import kdgat
from tests.ceilings import Ceilings, above, below, lowered, measured, recorded
from tests.support.imports import ROOT, Source, circles, lazy_table

TESTS = Path(__file__).parent
SOURCE = Source()
MOST_NAMES = 16  # of a lazy face
FACE = """
from typing import TYPE_CHECKING
from kdgat.base import lazy_names
if TYPE_CHECKING:
    from kdgat.face.solve import solve as solve
    from kdgat.face.other import Reader as Reader
__all__, __getattr__, __dir__ = lazy_names(__name__)
"""


@pytest.fixture(scope="module")
def numbers() -> Ceilings:
    return measured(SOURCE)


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
    assert circles(SOURCE.graph(for_types=False)) == []


def test_a_circle_is_found_through_a_function_and_a_lazy_face(tmp_path: Path) -> None:
    """The face itself imports nothing: who takes one of its names imports that name's module."""
    for path, text in {
        "kdgat/__init__.py": "",
        "kdgat/base.py": "",
        "kdgat/face/__init__.py": FACE,
        "kdgat/face/solve.py": "def f():\n    from kdgat.user import x\n",
        "kdgat/face/other.py": "from kdgat.base import y\n",
        "kdgat/user.py": "from kdgat.face import solve\n",
        "kdgat/elsewhere.py": "from kdgat.face import Reader, other\n",
        "kdgat/types.py": "import typing\nif typing.TYPE_CHECKING:\n    import kdgat.elsewhere\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    source = Source(tmp_path)
    graph = source.graph(for_types=False)
    assert circles(graph) == [["kdgat.face.solve", "kdgat.user"]]
    assert graph["kdgat.elsewhere"] == {"kdgat.face.other"}
    assert (graph["kdgat.face"], graph["kdgat.types"]) == (set(), set())
    assert source.graph(for_types=True)["kdgat.types"] == {"kdgat.elsewhere"}


def test_the_table_of_a_lazy_face_is_read_from_its_text() -> None:
    assert lazy_table("kdgat.face", ast.parse(FACE)) == {"solve": "solve", "Reader": "other"}
    assert lazy_table("kdgat.face", ast.parse("__all__ = ['solve']")) is None


@pytest.mark.parametrize("package", SOURCE.lazy_faces)
def test_a_lazy_face_gives_each_name_of_its_table_and_no_other(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, face = SOURCE.lazy_faces[package], importlib.import_module(package)
    assert len(table) <= MOST_NAMES, "a face is what a stranger learns first: name fewer"
    assert sorted(face.__all__) == sorted(table)
    assert set(dir(face)) >= set(table)
    modules = {name: importlib.import_module(f"{package}.{module}") for name, module in table.items()}
    for name in table:
        if f"{package}.{name}" in SOURCE.paths:  # whose first import puts it there, over a function of that name
            monkeypatch.setattr(face, name, importlib.import_module(f"{package}.{name}"))
    for name, module in modules.items():
        assert getattr(face, name) is getattr(module, name), name
    with pytest.raises(AttributeError):
        face.no_such_name  # noqa: B018


def test_no_number_is_above_its_ceiling(numbers: Ceilings) -> None:
    assert above(numbers, recorded()) == [], "these may only fall: make the change smaller, or remove something"


def test_who_lowers_a_number_lowers_its_ceiling(numbers: Ceilings) -> None:
    assert below(numbers, recorded()) == [], "run `python -m tests.ceilings`, and commit tests/ceilings.toml"


def test_ceilings_are_lowered_and_never_raised() -> None:
    ceilings = {"numbers": {"lines": 500, "modules": 5}, "modules": {"a": 20, "b": 20}, "circles": {"x y": 2}}
    numbers = {"numbers": {"lines": 400, "modules": 6}, "modules": {"a": 17, "c": 16}, "circles": {"x z": 2}}
    assert above(numbers, ceilings) == [
        "numbers: modules: 6, ceiling 5",
        "modules: c: 16, ceiling 15",
        "circles: x z: 2, ceiling 0",
    ]
    assert [line.split(",")[0] for line in below(numbers, ceilings)] == [
        "modules: a: 17",
        "modules: b: usual",
        "circles: x y: usual",
    ], "100 lines are within the slack"
    assert lowered(numbers, ceilings) == {
        "numbers": {"lines": 400, "modules": 5},
        "modules": {"a": 17},
        "circles": {},
    }


def test_the_map_names_every_package_and_only_files_that_are_there() -> None:
    named = re.findall(r"^    \(?(\w+)\)?\s+(?:base|library|engine|family|front) ", str(kdgat.__doc__), re.MULTILINE)
    folders = [path.parent.name for path in (ROOT / "kdgat").glob("*/__init__.py")]
    assert sorted(named) == sorted([*folders, "flows"])
    for path in re.findall(r"kdgat/[\w/.]+", str(kdgat.__doc__)):
        assert (ROOT / path.rstrip(".:")).exists(), path
