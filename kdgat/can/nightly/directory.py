"""What the nightly runs of one dataset leave behind: runs, records, reports, and the lock of the night at work."""

import errno
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from kdgat.base import UserError, write_bytes_atomically
from kdgat.base.files import list_folder, remove_tree
from kdgat.base.kept import read_kept
from kdgat.can.config import CanConfig
from kdgat.can.nightly.new_recordings import NewRecordings
from kdgat.can.nightly.registered import config_hash, content_hash
from kdgat.registry.entry import now
from kdgat.run import OutputDirectory
from kdgat.run.directory import Exclusive

NIGHTLY_FILE: Final = "night.json"  # marks a run directory as one that a night made


class NightlyRecord(BaseModel):
    """The content of `night.json` in a run directory: what the run was made for, and how far its night came."""

    model_config = ConfigDict(frozen=True, extra="allow")

    created: str
    recordings: str  # hash of what it trains and tests on
    config: str  # hash of its configuration
    start: str | None  # id of the model that it starts from
    compared_with: str | None = None  # id of the model that was in service when it was decided
    model: str | None = None  # id under which it was registered
    is_over: bool = False  # decided: nothing resumes it


class NightlyDirectory(Exclusive):
    """Names of what the nightly runs of one dataset leave behind."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.ledger_path = self.record_path = self.path / "nightly.json"
        self.being_read_path = self.path / "being-read.json"
        self.runs_path = self.path / "runs"
        self.reports_path = self.path / "reports"
        self.lock_path = self.path / "nightly.lock"
        self.owner_path = self.path / "nightly-owner.json"

    def busy(self, text: str) -> UserError:
        """Return the error of a second night in this directory."""
        return UserError(f"{text}; or choose another out")

    def records(self) -> dict[Path, NightlyRecord]:
        """Read what is known of the runs that nights made, oldest first; other directories are none of theirs."""
        found = {}
        for run in filter(Path.is_dir, list_folder(self.runs_path)):
            with suppress(FileNotFoundError):
                path = run / NIGHTLY_FILE
                advice = f"remove {run}, a night trains again"
                found[run] = read_kept(NightlyRecord, path.read_bytes(), path, advice)
        return dict(sorted(found.items(), key=lambda pair: pair[1].created))

    def write(self, run: Path, record: NightlyRecord) -> None:
        """Write what is known of a run."""
        run.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(run / NIGHTLY_FILE, (record.model_dump_json(indent=2) + "\n").encode())

    def write_report(self, name: str, text: str) -> None:
        """Write the report of a night, named after the moment."""
        self.reports_path.mkdir(parents=True, exist_ok=True)
        moment = now().replace(":", "").replace("+0000", "Z")
        write_bytes_atomically(self.reports_path / f"{moment}-{name}.md", text.encode())

    def choose_run(
        self, config: CanConfig, new_recordings: NewRecordings, start: str | None
    ) -> tuple[Path, NightlyRecord]:
        """Return the run for these recordings and settings: one that a night left unfinished, or a new one.

        One that starts from other weights than those of the model in service is resumed; one that starts from
        scratch where it should not, or the other way round, is not.
        """
        recordings, settings = content_hash(new_recordings.recordings), config_hash(config.model_dump(mode="json"))
        wanted = recordings, settings, start is None
        for path, record in self.records().items():
            is_from_scratch = record.start is None
            if not record.is_over and (record.recordings, record.config, is_from_scratch) == wanted:
                return path, record
        record = NightlyRecord(created=now(), recordings=recordings, config=settings, start=start)
        path = self.runs_path / f"night-{content_hash([recordings, settings, start])[:12]}"
        self.write(path, record)
        return path, record

    def close_runs(self, model: str | None) -> None:
        """Mark what became the model of the last completed night as over, which a night that died may not have done."""
        for path, record in self.records().items():
            if not record.is_over and record.model is not None and record.model == model:
                self.write(path, record.model_copy(update={"is_over": True}))

    def latest_run(self) -> OutputDirectory | None:
        """Return the run that was begun or continued last; None before the first."""
        written = {path.parent: path.stat().st_mtime for path in self.runs_path.glob("*/run.json")}
        return OutputDirectory(max(written, key=lambda path: written[path])) if written else None

    def latest_report(self) -> Path | None:
        """Return the report that was written last; None before the first."""
        return max(self.reports_path.glob("*.md"), key=lambda path: path.stat().st_mtime_ns, default=None)

    def unfinished_runs(self) -> dict[Path, int]:
        """Return the runs whose nights did not end, as after a failure, and how many bytes each takes."""
        left = [path for path, record in self.records().items() if not record.is_over]
        return {path: _num_bytes(path) for path in left}

    def old_runs(self, keep: int) -> list[Path]:
        """List all but the newest `keep` runs that are registered and over."""
        over = [path for path, record in self.records().items() if record.is_over and record.model is not None]
        return over[: max(0, len(over) - keep)]

    def remove_run(self, path: Path) -> None:
        """Remove the directory of a run; RunError if somebody works in it, OSError if something in it stays."""
        output = OutputDirectory(path)
        # The marker goes last: what a kill leaves of the directory is still known to be a night's. So does the lock:
        # NFS keeps what is removed while we hold it, and its folder, under another name.
        last = {NIGHTLY_FILE, output.lock_path.name}
        with output.lock():
            for entry in path.iterdir():
                if entry.name not in last:
                    remove_tree(entry)
        if left := {entry.name for entry in path.iterdir()} - last:
            raise OSError(errno.ENOTEMPTY, f"{', '.join(sorted(left))} cannot be removed", str(path))
        if not (remove_tree(output.lock_path) and remove_tree(path)):
            raise OSError(errno.ENOTEMPTY, "it cannot be removed", str(path))


def _num_bytes(folder: Path) -> int:
    total = 0
    with suppress(OSError):  # of what goes while we look
        for file in folder.rglob("*"):
            status = file.lstat()
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
