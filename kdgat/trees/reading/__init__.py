"""Trees from files: neurons, rivers and vessels, one by one or as a folder with a table of labels.

In: SWC files (`swc`), lines of a map (`rivers`), masks (`masks`). Out: `ReadTree`, a tree and notes on what had to be
repaired, or `ReadError` with file, line and fix. Read `result.py` first, then `collection.py`, which finds the files.
"""

from pathlib import Path

from kdgat.base import UserError


class ReadError(UserError):
    """A file that holds no tree that can be used; the text names the file, the line where there is one, and the fix."""

    def __init__(self, path: Path | str, problem: str, line: int | None = None) -> None:
        """Keep file and reason apart, for tables of files that were refused."""
        self.path = str(path)
        self.line = line
        self.problem = problem if line is None else f"line {line}: {problem}"
        super().__init__(f"{path}{'' if line is None else f':{line}'}: {problem}")
        self._given = str(path), problem, line

    def __reduce__(self) -> tuple[type, tuple[str, str, int | None]]:
        """Let the error leave its process."""
        return type(self), self._given
