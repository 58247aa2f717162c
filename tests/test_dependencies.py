"""What kdgat imports is declared: nobody else's package is there by chance, because another one brings it along."""

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kdgat.container.checkout import find_checkout
from tests.audit import read_pins

ROOT: Final = Path(__file__).parents[1]
OWN: Final = ("kdgat", "flows")
# Looked for before they are imported, and part of no extra that people install.
ONLY_WHERE_INSTALLED: Final = {
    "pandas": "data frames, for who asks kdgat.api for them",
    "lap": "another solver, which ours is compared with",
    "triton": "comes with a torch for CUDA, which pins it",
    "wandb": "of the extra loggers, installed by `make loggers`",
}
NOT_FOR_USERS: Final = ("dev", "docs", "loggers", "all")


def imports_of(source: str) -> Iterator[str]:
    """Yield the top-level names that a module imports, inside functions and for types, too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            yield node.module.partition(".")[0]


def foreign_imports() -> dict[str, list[str]]:
    """Return the modules of kdgat and flows that import a name which is neither ours nor Python's, for each name."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for package in OWN for path in (ROOT / package).rglob("*.py")):
        for name in set(imports_of(path.read_text(encoding="utf-8"))) - sys.stdlib_module_names - set(OWN):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return found


def undeclared(imports: dict[str, list[str]], declared: set[str]) -> list[str]:
    """Say which imports no distribution in `declared` provides, and where they are."""
    providers = packages_distributions()
    return [
        f"{name} ({', '.join(providers.get(name, ['not installed']))}) is imported by {', '.join(modules[:3])}"
        for name, modules in sorted(imports.items())
        if name not in ONLY_WHERE_INSTALLED
        and not declared & {canonicalize_name(provider) for provider in providers.get(name, ())}
    ]


def declared_names() -> set[str]:
    """Return the distributions that pyproject.toml asks for, by itself or in an extra that people install."""
    project = find_checkout(ROOT).project
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in NOT_FOR_USERS]
    return {canonicalize_name(Requirement(line).name) for line in sum(extras, project["dependencies"])}


def test_every_import_is_of_a_declared_dependency() -> None:
    assert undeclared(foreign_imports(), declared_names()) == []


@pytest.mark.parametrize("source", ["import yaml.nodes", "def f():\n    from yaml import nodes", "import yaml as y"])
def test_an_undeclared_import_is_found_at_any_depth(source: str) -> None:
    imports = {name: ["kdgat/new.py"] for name in imports_of(f"import sys\nfrom . import beside\n{source}")}
    del imports["sys"]
    assert undeclared(imports, {"pyyaml"}) == []
    assert undeclared(imports, {"numpy"}) == ["yaml (PyYAML) is imported by kdgat/new.py"]


def test_what_is_imported_only_where_it_is_installed_is_imported() -> None:
    assert set(ONLY_WHERE_INSTALLED) <= set(foreign_imports())


def test_all_are_all_extras_but_those_that_are_not_for_users() -> None:
    extras = find_checkout(ROOT).project["optional-dependencies"]
    (line,) = extras["all"]
    assert Requirement(line).extras == {name for name, lines in extras.items() if lines} - set(NOT_FOR_USERS)


def test_pins_of_packages_that_families_share_are_no_part_of_the_wheels_metadata() -> None:
    """A family of somebody else may need a newer torch; what was tested together is in constraints.txt and images."""
    project = find_checkout(ROOT).project
    for line in project["dependencies"]:
        operators = {specifier.operator for specifier in Requirement(line).specifier}
        assert operators <= {">=", "<"}, line
    names = {canonicalize_name(Requirement(line).name) for line in project["optional-dependencies"]["flows"]}
    assert "fastapi" not in names


def test_constraints_pin_what_is_declared_within_its_bounds() -> None:
    checkout = find_checkout(ROOT)
    pins = read_pins(checkout.constraints_path)
    extras = checkout.project["optional-dependencies"]
    wanted = [Requirement(line) for line in sum(extras.values(), checkout.project["dependencies"])]
    foreign = [one for one in wanted if one.name != "kdgat"]
    assert [one.name for one in foreign if canonicalize_name(one.name) not in pins] == []
    assert [str(one) for one in foreign if pins[canonicalize_name(one.name)] not in one.specifier] == []
