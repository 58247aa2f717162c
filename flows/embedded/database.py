"""The SQLite file of an embedded Prefect API: on a disk of this machine while it is used, then kept for the next one.

SQLite's write-ahead log works on no network filesystem, where output directories of a cluster must lie. The kept file
is written by copying alone, which needs neither locks nor shared memory there.
"""

import contextlib
import logging
import shutil
import sqlite3
from pathlib import Path
from typing import Final

from kdgat.base.files import replacing

MAX_KEPT_BYTES: Final = 256 << 20
BESIDE: Final = ("-wal", "-shm")  # what SQLite keeps beside a file that it has not closed

logger = logging.getLogger(__name__)


class EmbeddedDatabase:
    """A database in `folder`, on a disk of this machine, whose last state is kept as the file `kept`."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self.folder, self.kept = folder, kept
        self.path = folder / "prefect.db"

    def fetch(self) -> None:
        """Go on with what is kept; one that has grown too large is set aside, and an empty one begins."""
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        try:
            if self.kept.stat().st_size > MAX_KEPT_BYTES:
                self.kept.replace(self.kept.with_name(f"{self.kept.stem}-before{self.kept.suffix}"))
                return
            shutil.copyfile(self.kept, self.path)
            if Path(f"{self.kept}-wal").is_file():  # of a command that used the file where it lies, and was killed
                shutil.copyfile(f"{self.kept}-wal", f"{self.path}-wal")
        except FileNotFoundError:  # the first command
            return
        except OSError as error:
            logger.warning("what Prefect showed of earlier runs is left out, %s: %s", self.kept, error)

    def forget(self) -> None:
        """Begin an empty one; what is kept stays as it is."""
        for suffix in ("", *BESIDE):
            Path(f"{self.path}{suffix}").unlink(missing_ok=True)

    def set_aside(self, reason: str) -> None:
        """Leave what is kept under another name: Prefect cannot use it."""
        aside = self.kept.with_name(f"{self.kept.stem}-unreadable{self.kept.suffix}")
        self.kept.replace(aside)
        logger.warning("what Prefect showed of earlier runs is set aside as %s, and begins anew: %s", aside, reason)

    def keep(self) -> None:
        """Copy the present state while others write. A failure is one warning: nothing is resumed from it."""
        if not self.path.is_file():
            return
        copy = self.folder / "copy.db"
        try:
            with _opened(self.path) as source, _opened(copy) as target:
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # to be read where it lies
            with replacing(self.kept) as temporary:
                shutil.copyfile(copy, temporary)
            for suffix in BESIDE:
                Path(f"{self.kept}{suffix}").unlink(missing_ok=True)
        except (OSError, sqlite3.Error) as error:
            logger.warning("what Prefect shows of this run is not kept in %s: %s", self.kept, error)


def _opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(path))
