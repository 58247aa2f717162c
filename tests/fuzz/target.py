"""What is fuzzed: a strategy for inputs, and what has to hold whatever comes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from kdgat.stage.families import is_user_error

MAX_SENTENCE = 2500
"""Characters of a message: those that quote a list of files or of mistakes have some hundreds."""


@dataclass(frozen=True)
class Target:
    """One thing that reads.

    Attributes:
        name: for the command line and reports.
        share: how many inputs it gets beside the others.
        strategy: makes the strategy, and with it the samples; called once in a process.
        check: given an empty folder and an input, reads it; fails where it was neither read nor refused.
        processes: whether it starts Python processes.
    """

    name: str
    share: int
    strategy: Callable[[], st.SearchStrategy[Any]]
    check: Callable[[Path, Any], None]
    processes: bool = False


def read_or_refuse(folder: Path, read: Callable[[], object]) -> None:
    """Call what reads files in a folder: it returns, or says in a sentence what is wrong, and writes nothing there."""
    before = snapshot(folder)
    with quiet():
        try:
            read()
        except Exception as error:
            if not is_user_error(error):
                raise
            check_sentence(str(error))
    assert snapshot(folder) == before, "reading has changed the folder"


def check_sentence(text: str) -> None:
    """Fail for a message that no person could use."""
    assert text.strip(), "the error says nothing"
    assert len(text) <= MAX_SENTENCE, f"the error is {len(text)} characters long: {text[:300]}"
    assert "Traceback (most recent call last)" not in text, text


def snapshot(folder: Path) -> dict[str, int]:
    """Return all files in a folder, with their sizes."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*")}


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Take what is printed meanwhile."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield printed
