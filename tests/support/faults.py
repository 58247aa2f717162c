"""Faults of a filesystem that need no rights to cause."""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def fail_at(folder: Path, patch: pytest.MonkeyPatch, error: Callable[[], OSError | None]) -> None:
    """Let whatever looks at a folder, or at what is below it, meet the errors that a function chooses."""

    def failing(found: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *words: Any, **options: Any) -> Any:
            is_below = isinstance(path, str | os.PathLike) and os.fspath(path).startswith(str(folder))
            if is_below and (one := error()) is not None:
                raise one
            return found(path, *words, **options)

        return look

    for module, name in ((os, "stat"), (os, "lstat"), (os, "scandir"), (os, "listdir"), (os, "open"), (io, "open")):
        patch.setattr(module, name, failing(getattr(module, name)))


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
