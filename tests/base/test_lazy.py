"""A lazy face loads a module when a name of it is asked for, and not before."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a lazy face of one name, out of a module that is not loaded with it."""
    folder = tmp_path / "faced_package"
    folder.mkdir()
    (folder / "inside.py").write_text("def double(value: int) -> int:\n    return 2 * value\n")
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from kdgat.base.lazy import lazy_names\n"
        "if TYPE_CHECKING:\n"
        "    from faced_package.inside import double as double\n"
        "__all__, __getattr__, __dir__ = lazy_names(__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "faced_package"


def test_a_name_of_a_lazy_face_is_loaded_when_it_is_asked_for(package: str) -> None:
    face = __import__(package)
    assert f"{package}.inside" not in sys.modules
    assert face.double(21) == 42
    assert f"{package}.inside" in sys.modules
    assert face.__all__ == ["double"]
    assert "double" in dir(face)
    with pytest.raises(AttributeError, match="module 'faced_package' has no attribute 'treble'"):
        _ = face.treble
