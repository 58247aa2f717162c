"""What every night leaves behind: runs, records, reports, the lock of the night at work, and models for a registry."""

import errno
import hashlib
import json
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict

from kdgat.base import UserError, sha256_of_file, write_bytes_atomically
from kdgat.base.files import list_folder, remove_tree
from kdgat.base.kept import read_kept
from kdgat.registry import Promotion, Registry
from kdgat.registry.entry import now
from kdgat.run import FinishedRun, OutputDirectory, StageState
from kdgat.run.directory import Exclusive
from kdgat.stage.provenance import read_attempts

FLOW_NAME: Final = "nightly"
NIGHTLY_FILE: Final = "night.json"  # marks a run directory as one that a night made
CODE: Final = ("git", "packages", "python", "image")  # of an attempt: what it ran
NIGHTS_OF_STANDSTILL: Final = 7
"""Nights in a row that trained and promoted nothing, of which people are told, and of each so many more."""


class NightLedger(BaseModel):
    """The content of `nightly.json`: what the last completed night knew."""

    model_config = ConfigDict(extra="allow")

    schema_version: int = 1
    done: dict[str, str] = {}  # what it trained on -> its hash
    model: str | None = None  # which it registered

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the ledger; an empty one before the first night."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return cls()
        advice = "remove it, and the next night trains again"
        return read_kept(cls, content, path, advice)

    def write(self, path: Path) -> None:
        """Write the ledger atomically."""
        write_bytes_atomically(path, (self.model_dump_json(indent=2) + "\n").encode())


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
    """Names of what the nightly runs of one dataset, or experiment, leave behind."""

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

    def choose_run(self, recordings: str, config: str, start: str | None = None) -> tuple[Path, NightlyRecord]:
        """Return the run for data and settings of these hashes: one that a night left unfinished, or a new one.

        One that starts from other weights than those of the model in service is resumed; one that starts from
        scratch where it should not, or the other way round, is not.
        """
        wanted = recordings, config, start is None
        for path, record in self.records().items():
            if not record.is_over and (record.recordings, record.config, record.start is None) == wanted:
                return path, record
        record = NightlyRecord(created=now(), recordings=recordings, config=config, start=start)
        path = self.runs_path / f"night-{content_hash([recordings, config, start])[:12]}"
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


@dataclass(frozen=True)
class ModelSource:
    """What a registry is given of a run."""

    files: dict[str, Path | bytes]  # path below the model's directory -> file, or content
    content: str  # hash of what the stages were and of what they learned
    provenance: dict[str, Any]  # which code, packages, configuration and data it comes from

    @classmethod
    def of_run(cls, run: FinishedRun, artifacts: Collection[str], config: Mapping[str, Any], **provenance: Any) -> Self:
        """Collect what makes a model of a finished run: its files, those of these artifacts, and this configuration.

        Its directory can be taken for that of the run. RunError if the run has not finished, or an artifact is not as
        it was written: it would be another model under the name of this one.
        """
        records = list(run.records())
        files: dict[str, Path | bytes] = {}
        attempts: dict[str, dict[str, Any]] = {}
        weights: dict[str, str] = {}
        for record in records:
            stage = run.output.stage_directory(record)
            kept = [stage.spec_path, stage.outcome_path, stage.provenance_path, stage.metrics_path]
            kept += [run.artifact(record, name) for name in run.outcome(record).artifacts if name in artifacts]
            files |= {path.relative_to(run.output.path).as_posix(): path for path in kept if path.is_file()}
            weights[record.name] = sha256_of_file(stage.weights_path) if stage.weights_path.is_file() else ""
            attempts[record.name] = (read_attempts(stage.provenance_path) or [{}])[-1]
        finished = [record.model_copy(update={"state": StageState.FINISHED, "message": ""}) for record in records]
        index = run.index.model_copy(update={"stages": finished, "config": dict(config)})
        files[run.output.index_path.name] = (index.model_dump_json(indent=2) + "\n").encode()
        trained = next((attempt for name, attempt in reversed(attempts.items()) if attempt and weights[name]), {})
        content = content_hash(sorted((record.name, record.identity, weights[record.name]) for record in records))
        return cls(
            files,
            content,
            {
                **{key: trained[key] for key in CODE if key in trained},
                "revisions": sorted({str((attempt.get("git") or {}).get("revision")) for attempt in attempts.values()}),
                "preset": run.index.config.get("preset"),
                "seeds": sorted(run.evaluations()),
                "stages": {record.name: record.identity for record in records},
                "run": str(run.output.path.absolute()),
                **provenance,
            },
        )


def is_registered(model: str | None, registry: Registry) -> bool:
    """Return whether the model of the last completed night is there."""
    return registry.exists() and model in [entry.id for entry in registry.read().models]


def content_hash(content: Any) -> str:
    """Hash plain data; 64 hex digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def describe_decision(reason: str, model: str, decision: Promotion) -> str:
    """Say in one sentence why a night trained, and what became of its model."""
    what = "went into service" if decision.accepted else "was registered and did not go into service"
    return f"{reason}; {model} {what}: {decision.describe()}"
