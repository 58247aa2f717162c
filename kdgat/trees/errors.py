"""What users can do wrong with trees."""

from pathlib import Path

from kdgat.base.errors import UserError


class ReadError(UserError):
    """A file that holds no tree that can be used; the text names the file, the line where there is one, and the fix."""

    def __init__(self, path: Path | str, problem: str, line: int | None = None) -> None:
        """Keep file and reason apart, for tables of files that were refused."""
        self.path = str(path)
        self.line = line
        self.problem = problem if line is None else f"line {line}: {problem}"
        super().__init__(f"{path}{'' if line is None else f':{line}'}: {problem}")
