"""The examples in docstrings are true."""

import doctest
import importlib
import pkgutil

import pytest

import kdgat

# Whose public classes show how they are used; more may.
PACKAGES = ("kdgat.stage", "kdgat.run", "kdgat.training", "kdgat.cluster", "kdgat.family", "kdgat.lap.solver")
PROGRAMS = ("__main__", "worker")  # their import does something


def modules() -> list[str]:
    """List the modules of these packages."""
    found = pkgutil.walk_packages(kdgat.__path__, "kdgat.")
    names = [module.name for module in found if module.name.startswith(PACKAGES) and not module.ispkg]
    return [name for name in names if name.rpartition(".")[2] not in PROGRAMS]


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    """Run what the docstrings of a module show."""
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_what_people_call_shows_how() -> None:
    """The classes that a newcomer meets first have an example, so that the test above is about something."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    wanted = {
        "kdgat.stage.spec": "StageSpec",
        "kdgat.stage.directory": "RunDirectory",
        "kdgat.stage.configuration": "Config",
        "kdgat.run.plan": "with_dependencies",
        "kdgat.run.directory": "OutputDirectory",
        "kdgat.training.config": "TrainingConfig",
        "kdgat.training.deadline": "Deadline",
        "kdgat.cluster.site": "Site",
        "kdgat.cluster.decision": "decide",
        "kdgat.lap.solver.exact": "solve",
    }
    without = []
    for module, name in wanted.items():
        shown = finder.find(getattr(importlib.import_module(module), name))
        if not any(example.examples for example in shown):
            without.append(f"{module}.{name}")
    assert without == []
