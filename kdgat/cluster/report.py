"""What a job leaves in the run directory for whoever watches it, now or later: signs of life, then its report.

Files, because whoever began a job may be gone when it ends. All bear the job's number.
"""

import json
import os
import tempfile
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from kdgat.base import write_bytes_atomically
from kdgat.base.configuration import KEPT
from kdgat.base.files import list_folder
from kdgat.base.kept import refuse_newer
from kdgat.stage import Outcome, RunDirectory, RunDirectoryError

ALIVE: Final = "alive-{}"  # empty from the end of the prologue on, then the node's name; touched while the job lives
REPORT: Final = "report-{}.json"


class NodeReport(BaseModel):
    """What a job reports about its attempt."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # of a job that is older than who watches it, or younger

    status: int  # exit status of the stage; negative: the signal that ended it
    outcome: Outcome | None
    node: str
    stop_reason: str  # who asked it to leave; empty: nobody
    checkpoint: str
    made_progress: bool
    peak_memory_mib: int
    was_oom_killed: bool
    stalled: bool


def parse_report(text: str | bytes, place: object = "the report of a job") -> NodeReport | None:
    """Read a report from JSON; None if it is none, RunDirectoryError for that of a newer kdgat."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    refuse_newer(content, place, RunDirectoryError)
    try:
        return NodeReport.model_validate(content, extra="ignore", context=KEPT)
    except ValidationError:
        return None


class JobFiles:
    """The files of one job in its run directory.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     files = JobFiles(RunDirectory(folder), "17")
    ...     before = files.sign_of_life()
    ...     files.begin("n1")
    ...     before, files.sign_of_life()[0], files.read_report()
    (None, 'n1', None)
    """

    def __init__(self, directory: RunDirectory, job_id: str) -> None:
        self.alive_path = directory.path / ALIVE.format(job_id)
        self.report_path = directory.path / REPORT.format(job_id)

    def begin(self, node: str) -> None:
        """Write the first sign of life."""
        self.alive_path.write_text(node)

    def touch(self) -> None:
        """Give another sign of life."""
        os.utime(self.alive_path)

    def write_report(self, report: NodeReport) -> None:
        """Write the report, and give no sign of life any more."""
        write_bytes_atomically(self.report_path, report.model_dump_json(indent=2).encode())
        self.alive_path.unlink(missing_ok=True)

    def read_report(self) -> NodeReport | None:
        """Read the report; None while there is none, OSError if nobody can say that now."""
        try:
            return parse_report(self.report_path.read_bytes(), self.report_path)
        except FileNotFoundError:
            return None

    def sign_of_life(self) -> tuple[str, int] | None:
        """Return the node, empty before the job's process began, and a number that changes; None in the prologue.

        Raises:
            OSError: if nobody can say it now, for instance because the filesystem is not there.
        """
        try:
            with self.alive_path.open(errors="replace") as file:  # opened: a network filesystem then asks its server
                return file.read().strip(), os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            self.alive_path.parent.stat()
            return None

    def last_sign_s(self) -> float | None:
        """Return how long ago the last sign of life was, by the file server's clock; None where there is none."""
        try:
            then = self.alive_path.stat().st_mtime
        except FileNotFoundError:
            return None
        with tempfile.TemporaryFile(dir=self.alive_path.parent) as now:
            return os.fstat(now.fileno()).st_mtime - then


def jobs_with_files(directory: RunDirectory) -> list[str]:
    """Return the numbers of the jobs that left files, oldest first."""
    found = {
        path.name.partition("-")[2].partition(".")[0]: path.stat().st_mtime
        for pattern in (ALIVE, REPORT)
        for path in list_folder(directory.path, pattern.format("*"))
    }
    return sorted(found, key=lambda job_id: found[job_id])


def remove_job_files(directory: RunDirectory) -> None:
    """Remove what earlier jobs left; only where none of them is watched any more."""
    for pattern in (ALIVE, REPORT):
        for path in list_folder(directory.path, pattern.format("*")):
            path.unlink(missing_ok=True)
