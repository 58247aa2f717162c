"""The family `toy` of tests/toy, registered as another distribution would do it."""

import os

import pytest

from kdgat.family import Family, find_family
from tests.support.toy import TOY


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Family:
    """Return the family; processes that are started meanwhile know it, too."""
    monkeypatch.syspath_prepend(TOY)
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), *([before] if before else [])]))
    return find_family("toy")
