"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

import kdgat


def modules() -> list[str]:
    """List the modules whose text shows an example."""
    root = Path(kdgat.__file__).parent
    paths = sorted(path for path in root.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
    return [".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__") for path in paths]


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    """Run what the docstrings of a module show."""
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted > 0) == (0, True)


def test_what_people_call_shows_how() -> None:
    """The classes that a newcomer meets first have an example, so that the test above is about something."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    wanted = {
        "kdgat.stage.spec": "StageSpec",
        "kdgat.stage.directory": "RunDirectory",
        "kdgat.base.configuration": "Config",
        "kdgat.run.plan": "with_dependencies",
        "kdgat.run.directory": "OutputDirectory",
        "kdgat.training.config": "TrainingConfig",
        "kdgat.training.deadline": "Deadline",
        "kdgat.cluster.site": "Site",
        "kdgat.cluster.decision": "decide",
        "kdgat.assignment.exact": "solve",
    }
    without = []
    for module, name in wanted.items():
        shown = finder.find(getattr(importlib.import_module(module), name))
        if not any(example.examples for example in shown):
            without.append(f"{module}.{name}")
    assert without == []
