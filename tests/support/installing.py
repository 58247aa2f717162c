"""`make install` of this checkout, into another environment."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def outside_of_make() -> dict[str, str]:
    """Return the environment without what a `make` that runs the tests has put there."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}


def make_install(venv: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Call `make install` for a virtual environment; return what it printed, and its status."""
    command = ["make", "--no-print-directory", "install", f"VENV={venv}", *words]
    return subprocess.run(command, cwd=ROOT, env=outside_of_make(), capture_output=True, text=True, check=False)
