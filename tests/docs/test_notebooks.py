"""Notebooks of the documentation run from top to bottom in a folder of their own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.family import read_summary

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


@pytest.mark.processes
def test_the_notebook_about_python_runs(tmp_path: Path) -> None:
    notebook = json.loads((TUTORIALS / "python.ipynb").read_text(encoding="utf-8"))
    assert not [cell for cell in notebook["cells"] if cell.get("outputs")], "clear the outputs before you commit"
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name: read_summary(path).state for path in (tmp_path / "runs").iterdir()} == {
        "tiny": "finished",
        "slower": "finished",
    }
