"""Files that fail for a while as on a filesystem in trouble, in processes that preload a library of some lines of C."""

import errno
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


class FailingFiles:
    """One library, and the file that says what fails."""

    def __init__(self, path: Path) -> None:
        if shutil.which("cc") is None:
            pytest.skip("a C compiler is missing: apt-get install gcc libc6-dev")
        path.mkdir(parents=True, exist_ok=True)
        self._library, self._control = path / "failing_files.so", path / "failing"
        self.log_path = path / "failing.log"  # of what went wrong by chance
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"], check=True, timeout=120
        )

    @property
    def prologue(self) -> list[str]:
        """Return the shell lines after which a job's files can fail."""
        return [f"export {' '.join(f'{name}={value}' for name, value in self.environment.items())}"]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a process whose files can fail."""
        return {"FAILING_FILES": str(self._control), "LD_PRELOAD": str(self._library)}

    @contextmanager
    def failing(self, number: int, pattern: str, *, reads: bool = False, locks: bool = False) -> Iterator[None]:
        """Let writes of files with such a path fail with an error, as `errno.EDQUOT`; reads, too, or locks alone."""
        assert number in errno.errorcode
        self._rule(f"{number} {'l' if locks else 'a' if reads else 'w'} {pattern}\n")
        try:
            yield
        finally:
            self._control.unlink()

    def fail_by_chance(self, share: float, pattern: str) -> None:
        """Let a share of the looks at files with such a path go wrong from now on, each in some way of its own."""
        self._rule(f"? {share * 1e6:.0f} {pattern}\n")

    def _rule(self, line: str) -> None:
        new = self._control.with_suffix(".new")
        new.write_text(line)
        new.rename(self._control)
