"""HDF5 is opened in one place, without locks: filesystems of clusters often have none."""

import ast
import errno
import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from kdgat.base.hdf5 import is_hdf5
from tests.support.failing_files import FailingFiles
from tests.support.imports import Source

PLACE = "kdgat.base.hdf5"
OPENERS = ("File", "HDFStore", "read_hdf", "to_hdf")  # of h5py and pandas


def openers(tree: ast.AST) -> set[str]:
    """Return what opens an HDF5 file in a module: calls of such names, and names taken from h5py to call them later."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "h5py"]
    names = {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}
    return {name for name in names | {alias.name for node in imported for alias in node.names} if name in OPENERS}


def test_nobody_else_opens_an_hdf5_file() -> None:
    assert [name for name, tree in Source().trees.items() if openers(tree)] == [PLACE]


@pytest.mark.parametrize("text", ["h5py.File(p)", "from h5py import File as F", "import h5py as h\nh.File(p, 'w')"])
def test_who_opens_one_is_found(text: str) -> None:
    assert openers(ast.parse(text)) == {"File"}


SCRIPT = """
import sys
from kdgat.base.hdf5 import open_hdf5
if sys.argv[2] == "locks":
    import h5py
    open_hdf5 = lambda *words: h5py.File(*words, locking=True)
with open_hdf5(sys.argv[1], "w") as file:
    file["rows"] = [1, 2]
with open_hdf5(sys.argv[1]) as file:
    print(file["rows"][:].tolist())
"""


@pytest.mark.processes
def test_files_are_written_and_read_where_locks_are_refused(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "HDF5_USE_FILE_LOCKING"}
    with files.failing(errno.ENOLCK, "*.h5", locks=True):
        done, refused = (
            subprocess.run(
                [sys.executable, "-c", SCRIPT, str(tmp_path / "a.h5"), how],
                env={**environment, **files.environment}, capture_output=True, text=True, timeout=120,
            )
            for how in ("ours", "locks")
        )  # fmt: skip
    assert done.stdout == "[1, 2]\n", done.stderr
    assert "No locks available" in refused.stderr


def test_a_file_that_cannot_be_read_now_is_not_taken_for_one_of_another_kind(tmp_path, monkeypatch):
    for name, block in (("plain", 0), ("matlab", 512)):  # MATLAB writes 512 bytes of its own first
        with h5py.File(tmp_path / name, "w", userblock_size=block) as file:
            file["a"] = [1]
        assert is_hdf5(tmp_path / name)
    (tmp_path / "text").write_text("no HDF5 " * 200)
    (tmp_path / "empty").touch()
    assert not is_hdf5(tmp_path / "text")
    assert not is_hdf5(tmp_path / "empty")

    def refuse(*_arguments, **_options):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        is_hdf5(tmp_path / "plain")
