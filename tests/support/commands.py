"""Commands of the shell that stand before the real ones of their names."""

import os
from pathlib import Path


def write_commands(folder: Path, **lines: str) -> str:
    """Write commands into a folder, by their names the lines of their scripts; return a PATH that leads there first."""
    folder.mkdir(exist_ok=True)
    for name, text in lines.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"
