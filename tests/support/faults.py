"""Faults of a filesystem that need no rights to cause."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """Let every write of a file fail with an OSError: a folder that is not empty has its name."""
    aside = path.with_name(f"{path.name}.aside")
    if path.exists():
        path.replace(aside)
    (path / "full").mkdir(parents=True)
    try:
        yield
    finally:
        (path / "full").rmdir()
        path.rmdir()
        if aside.exists():
            aside.replace(path)
