"""Run the command line as a person would: in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def run_kdgat(*words: str, timeout_s: float = 120.0, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `kdgat` with these words and return status and output."""
    return subprocess.run(
        [sys.executable, "-m", "kdgat.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        check=False,
    )
