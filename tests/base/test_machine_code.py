"""Machine code that is kept belongs to the sources and the signature that it is loaded for."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.base import machine_code

pytestmark = pytest.mark.processes

KERNEL = """
from kdgat.base import machine_code
from pathlib import Path
machine_code.ROOTS["mini"] = Path(__file__).parent
from mini.constants import FACTOR
from mini.inner import inner

@machine_code.njit(cache=True)
def outer(value):
    return FACTOR * inner(value)
"""
INNER = """
from kdgat.base.machine_code import njit

@njit(cache=True, inline="always")
def inner(value):
    return value + {added}
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package of a kernel, what is inlined into it, and a constant."""
    folder = tmp_path / "mini"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "outer.py").write_text(KERNEL)
    (folder / "inner.py").write_text(INNER.format(added=1))
    (folder / "constants.py").write_text("FACTOR = 1\n")
    return folder


def result(package: Path, value: str = "1", before: str = "", **more: str) -> str:
    program = f"{before}from mini.outer import outer; print(outer({value}), sum(outer.stats.cache_hits.values()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path]), **more}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_kernel_is_compiled_again_when_what_it_is_made_of_changes_elsewhere(package: Path) -> None:
    assert result(package) == "2 0"
    assert result(package) == "2 1", "kept"
    (package / "inner.py").write_text(INNER.format(added=2))
    assert result(package) == "3 0"
    (package / "constants.py").write_text("FACTOR = 10\n")
    assert result(package) == "30 0"
    assert result(package) == "30 1"
    kept = list((package / "__pycache__").glob("outer.outer*.nbc"))
    assert len(kept) == 3
    for path in kept:
        os.utime(path, (0.0, 0.0))
    (package / "constants.py").write_text("FACTOR = 100\n")
    assert result(package) == "300 0"
    assert len(list((package / "__pycache__").glob("outer.outer*.nbc"))) == 1, "old code of other sources is removed"


def test_each_signature_has_a_file_of_its_own(package: Path) -> None:
    assert result(package) == "2 0"
    (index,) = (package / "__pycache__").glob("outer.outer*.nbi")
    first = index.read_bytes()
    assert result(package, "1.5") == "2.5 0"
    of_both = {path.name for path in (package / "__pycache__").glob("outer.outer*.nbc")}
    index.write_bytes(first)  # what the other process of two, that began before, would write last
    assert result(package) == "2 1"
    assert result(package, "1.5") == "2.5 0", "compiled once more: its entry is lost"
    assert {path.name for path in (package / "__pycache__").glob("outer.outer*.nbc")} == of_both


MATRIX_PRODUCT = """
import sys
import numpy as np
from kdgat.base.machine_code import njit
kernel = njit(lambda a, b: a[0] + b[0])
kernel(np.ones(2), np.ones(2))
print("scipy.linalg" in sys.modules)
import scipy.linalg
print(njit(lambda a, b: a @ b)(np.eye(2), 3 * np.eye(2))[1, 1], scipy.linalg.det(2 * np.eye(2)))
"""


def test_a_kernel_loads_scipy_where_it_multiplies_matrices_alone() -> None:
    printed = subprocess.run([sys.executable, "-c", MATRIX_PRODUCT], check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["False", "3.0", "4.0"]


def test_of_a_lazy_face_only_the_modules_count_whose_names_are_imported(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    faced = tmp_path / "faced"
    faced.mkdir()
    (faced / "__init__.py").write_text(
        "if TYPE_CHECKING:\n    from mini.faced.first import one as one\n"
        "    from mini.faced.second import two as two\nlazy_names(__name__)\n"
    )
    for name in ("first", "second", "third"):
        (faced / f"{name}.py").write_text("")
    machine_code.ROOTS["mini"] = tmp_path
    try:
        imported = {path.stem for path in machine_code._imported("from mini.faced import (\n    one,\n    third,\n)\n")}
        assert imported == {"first", "third"}  # the face itself is for type checkers, which import all
        assert {path.stem for path in machine_code._imported("import mini.faced")} == {
            "__init__",
            "first",
            "second",
            "third",
        }
    finally:
        del machine_code.ROOTS["mini"]


def test_code_is_kept_in_a_folder_of_ones_own_where_neither_sources_nor_home_can_be_written(package: Path) -> None:
    others = "from kdgat.base import machine_code\n"
    others += "machine_code.caching.FunctionCache._impl_class._locator_classes[:-1] = []\n"  # as for them
    folder = package.parent / f"kdgat-numba-{os.getuid()}"
    assert result(package, before=others, TMPDIR=str(package.parent)) == "2 0"
    assert result(package, before=others, TMPDIR=str(package.parent)) == "2 1"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)  # others may put code there
    with pytest.raises(AssertionError, match="cannot cache function"):
        result(package, before=others, TMPDIR=str(package.parent))
