"""What users can do wrong with trees."""

from pathlib import Path


class TreesError(ValueError):
    """Trees, files or settings that cannot be used; the text names the place, the value and the fix."""


class TreeError(TreesError):
    """Nodes that are no rooted tree."""


class ReadError(TreesError):
    """A file that holds no tree that can be used; the text names the file, the line where there is one, and the fix."""

    def __init__(self, path: Path | str, problem: str, line: int | None = None) -> None:
        """Keep file and reason apart, for tables of files that were refused."""
        self.path = str(path)
        self.line = line
        self.problem = problem if line is None else f"line {line}: {problem}"
        super().__init__(f"{path}{'' if line is None else f':{line}'}: {problem}")


class CollectionError(TreesError):
    """A folder of trees, or its table of labels, that cannot be used."""
