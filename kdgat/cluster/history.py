"""The attempts at a stage: `attempts.json` in its run directory, written by whoever starts them."""

import time
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kdgat.cluster.decision import Decision
from kdgat.cluster.ending import AttemptEnd
from kdgat.cluster.resources import Resources
from kdgat.stage.directory import RunDirectory
from kdgat.stage.errors import RunDirectoryError
from kdgat.stage.files import remove_temporary_files, write_snapshot

OPEN: Final = ""  # the end of an attempt that has none yet


class AttemptRecord(BaseModel):
    """One attempt: what was asked for, what happened, what was decided."""

    model_config = ConfigDict(extra="forbid")

    number: int
    resources: Resources | None = None
    excluded_nodes: tuple[str, ...] = ()
    job_id: str = ""
    node: str = ""
    submitted: float = 0.0  # seconds since the epoch; 0: not yet
    started: float = 0.0  # when the worker reported
    ended: float = 0.0
    end: str = OPEN  # the value of an EndKind
    message: str = ""
    checkpoint: str = ""
    peak_memory_mib: int | None = None
    decision: str = ""


class _Ledger(BaseModel):
    model_config = ConfigDict(extra="forbid")

    attempts: list[AttemptRecord] = Field(default_factory=list)


class AttemptLedger:
    """All attempts ever made at a stage, also by earlier runs of the flow; every change is written when it returns.

    No stage ends for want of it: what cannot be written is written with the next change.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.path = directory.attempts_path
        self.records = self._read()

    def open(self, resources: Resources | None, excluded_nodes: frozenset[str] = frozenset()) -> AttemptRecord:
        """Note that an attempt begins; its number is used once, whatever happens to the flow."""
        number = self.records[-1].number + 1 if self.records else 1
        remove_temporary_files(self.path.parent, f"{self.path.name}.*")  # of flows that were killed
        record = AttemptRecord(number=number, resources=resources, excluded_nodes=tuple(sorted(excluded_nodes)))
        self.records.append(record)
        self._write()
        return record

    def submitted(self, record: AttemptRecord, job_id: str) -> None:
        """Note the job, so that a flow that is started again finds it."""
        record.job_id, record.submitted = job_id, time.time()
        self._write()

    def started(self, record: AttemptRecord) -> None:
        """Note that the worker is there."""
        record.started = time.time()
        self._write()

    def close(self, record: AttemptRecord, end: AttemptEnd, decision: Decision) -> None:
        """Note how the attempt ended and what was decided."""
        record.end, record.message, record.checkpoint = end.kind.value, end.message, end.checkpoint
        record.job_id, record.node = end.job_id or record.job_id, end.node
        record.peak_memory_mib, record.ended = end.peak_memory_mib, time.time()
        record.decision = decision.reason
        self._write()

    def left_open(self) -> list[AttemptRecord]:
        """Return the attempts whose end nobody noted: the flow that made them died."""
        return [record for record in self.records if record.end == OPEN]

    def abandon(self, record: AttemptRecord, name: str, message: str) -> None:
        """Note that the flow which made an attempt is gone."""
        record.end, record.message, record.ended = name, message, time.time()
        self._write()

    def _read(self) -> list[AttemptRecord]:
        try:
            return _Ledger.model_validate_json(self.path.read_bytes()).attempts
        except FileNotFoundError:
            return []
        except ValidationError as error:
            raise RunDirectoryError(
                f"{self.path} is damaged: {error}; remove it: only the history of attempts is lost"
            ) from error

    def _write(self) -> None:
        content = _Ledger(attempts=self.records).model_dump_json(indent=2) + "\n"
        write_snapshot(self.path, content.encode())
