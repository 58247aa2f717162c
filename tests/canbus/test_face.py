"""What `kdgat.canbus` exports: there, documented with an example, and imported when it is asked for."""

import doctest
import subprocess
import sys

import pytest

import kdgat.canbus
from kdgat.canbus import features, injection, simulation


@pytest.mark.parametrize("face", [kdgat.canbus, features, injection, simulation], ids=lambda face: face.__name__)
def test_every_exported_name_is_there(face: object) -> None:
    missing = [name for name in face.__all__ if not hasattr(face, name)]  # type: ignore[attr-defined]
    assert missing == []


def test_every_exported_name_shows_how_it_is_used() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    exported = {name: getattr(kdgat.canbus, name) for name in kdgat.canbus.__all__}
    without = [name for name, value in exported.items() if not any(one.examples for one in finder.find(value, name))]
    assert without == []


@pytest.mark.processes
def test_settings_are_loaded_without_what_reads_and_computes() -> None:
    program = (
        "import sys\n"
        "from kdgat.canbus import InjectionConfig, WindowConfig, read_recording\n"
        "from kdgat.canbus.features import FEATURE_VERSION, NODE_FEATURES\n"
        "print([name for name in ('numba', 'polars', 'h5py', 'can', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
