"""The attempts at a stage: `attempts.jsonl` in its run directory, written by whoever starts them.

What the next attempt needs to know of the earlier ones is read from here, also by the next command: a stage that needed
more memory yesterday needs it today.
"""

import logging
import time
from itertools import chain
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from kdgat.base.files import append_snapshot
from kdgat.base.kept import read_kept
from kdgat.base.lines import whole_objects
from kdgat.cluster.decision import Decision, History, Retry
from kdgat.cluster.ending import NEVER, NOT_NOW, AttemptEnd, Because, EndKind
from kdgat.cluster.resources import Resources
from kdgat.cluster.site import Limits, Site
from kdgat.stage import Failed, FailureKind, Finished, RunDirectory, RunDirectoryError

logger = logging.getLogger(__name__)

# A node that is broken has been mended or drained by then; one that was cut off for a moment is not lost for weeks.
EXCLUDED_FOR_S: Final = 86_400.0
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
    made_progress: bool = False
    failure: FailureKind | None = None  # what the stage said
    signal: int = 0  # that ended its process
    decision: str = ""
    next_resources: Resources | None = None  # where the decision was to try again
    next_excluded_nodes: tuple[str, ...] | None = None

    def as_end(self) -> AttemptEnd | None:
        """Return the end as it was; None of an attempt that is open, or that its flow abandoned."""
        try:
            kind = EndKind(self.end)
        except ValueError:
            return None
        return AttemptEnd(
            kind=kind,
            message=self.message,
            outcome=Failed(kind=self.failure, evidence=self.message) if self.failure is not None else None,
            job_id=self.job_id,
            node=self.node,
            checkpoint=self.checkpoint,
            made_progress=self.made_progress,
            peak_memory_mib=self.peak_memory_mib,
            signal=self.signal,
        )


class AttemptLedger:
    """All attempts ever made at a stage, also by earlier runs of the flow; every change is written when it returns.

    A change is a line of its own, the whole record as it stands then; the last one of a number counts. No stage ends
    for want of it: what cannot be written is written with the next change.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory, self.path = directory, directory.attempts_path
        self._unwritten: dict[int, AttemptRecord] = {}
        self._ends: list[AttemptEnd] = []  # since the last new checkpoint
        self._raised: list[dict[str, Any]] = []  # what each escalation raised, with what it was raised to
        self._excluded_since: dict[str, float] = {}  # nodes; seconds since the epoch
        self._refused: Resources | None = None  # what Slurm grants no job
        self.records = self._read()
        for record in self.records:
            # How long Slurm was asked in vain is counted anew: somebody has given the command again.
            if record.end not in NOT_NOW:
                self._learn(record)
        self._refused = None  # Slurm may grant more by now

    def history(self, asked: Resources | None, site: Site) -> History:
        """Return what the next attempt asks for, and what is to be known when it ends.

        `asked` is what the command asks for, None where stages are no jobs. It is raised to what earlier attempts have
        shown to be needed, and counts where it is more; so do the limits of the site, where they are less by now.
        """
        resources, unescalated = _raise(asked, self._raised, site.limits), _raise(asked, self._raised[:-1], site.limits)
        now = time.time()
        return History(
            resources=resources,
            ends=tuple(self._ends),
            excluded_nodes=frozenset(n for n, since in self._excluded_since.items() if now - since < EXCLUDED_FOR_S),
            unescalated=unescalated if unescalated != resources else None,
            refused=self._refused,
        )

    def open(self, resources: Resources | None, excluded_nodes: frozenset[str] = frozenset()) -> AttemptRecord:
        """Note that an attempt begins; its number is used once, whatever happens to the flow."""
        number = self.records[-1].number + 1 if self.records else 1
        record = AttemptRecord(number=number, resources=resources, excluded_nodes=tuple(sorted(excluded_nodes)))
        self.records.append(record)
        self._write(record)
        return record

    def submitted(self, record: AttemptRecord, job_id: str) -> None:
        """Note the job, so that a flow that is started again finds it."""
        record.job_id, record.submitted = job_id, time.time()
        self._write(record)

    def started(self, record: AttemptRecord) -> None:
        """Note that the worker is there."""
        record.started = record.started or time.time()  # a job that is watched on began before
        self._write(record)

    def close(self, record: AttemptRecord, end: AttemptEnd, decision: Decision) -> None:
        """Note how the attempt ended and what was decided; ValueError of an end that nobody has understood."""
        if end.because is None:
            raise ValueError(f"attempt {record.number} goes on: {end.message}")
        record.end, record.message, record.checkpoint = end.kind.value, end.message, end.checkpoint
        record.job_id, record.node = end.job_id or record.job_id, end.node
        record.peak_memory_mib, record.ended = end.peak_memory_mib, time.time()
        record.made_progress, record.failure, record.signal = end.made_progress, end.failure, end.signal
        record.decision = decision.reason
        if isinstance(decision, Retry):
            record.next_resources = decision.resources
            record.next_excluded_nodes = tuple(sorted(decision.excluded_nodes))
        self._learn(record)
        self._write(record)

    def left_open(self) -> list[AttemptRecord]:
        """Return the attempts whose end nobody noted: the flow that made them died."""
        return [record for record in self.records if record.end == OPEN]

    def abandon(self, record: AttemptRecord, name: str, message: str, because: Because) -> None:
        """Note that nobody goes on with an attempt, and why: one of the reasons that there are to end any."""
        logger.info("attempt %d: %s: %s (%s)", record.number, name, message, because.value)
        record.end, record.message, record.ended = name, message, time.time()
        record.checkpoint = self.directory.newest_checkpoint()
        record.made_progress = record.checkpoint != self.checkpoint_before(record)
        self._learn(record)
        self._write(record)

    def checkpoint_before(self, record: AttemptRecord) -> str:
        """Return the newest checkpoint there was when the attempt before had ended."""
        earlier = (one.checkpoint for one in reversed(self.records) if one.number < record.number)
        return next(filter(None, earlier), "")

    def _learn(self, record: AttemptRecord) -> None:
        if record.made_progress:
            self._ends.clear()
        elif (end := record.as_end()) is not None:
            self._ends.append(end)
        if record.next_excluded_nodes is None:
            return
        # Nodes that an attempt was made without are left out since then.
        since = {node: self._excluded_since.get(node, record.ended) for node in record.excluded_nodes}
        self._excluded_since = {node: since.get(node, record.ended) for node in record.next_excluded_nodes}
        before, after = record.resources, record.next_resources
        if before is None or after is None or before == after:
            return
        if record.end in NEVER:  # the last growth is undone
            self._refused = before
            del self._raised[-1:]
            return
        changed = {key: value for key, value in after if getattr(before, key) != value}
        if "gpu_type" in changed:  # replaces this one alone: whoever asks for another type by hand gets it
            changed["gpu_type"] = (before.gpu_type, after.gpu_type)
        self._raised.append(changed)

    def _read(self) -> list[AttemptRecord]:
        """Read the last record of each attempt; one that a power cut or a full disk cut short is none."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        records: dict[int, AttemptRecord] = {}
        for found in chain.from_iterable(whole_objects(line, "number") for line in lines):
            advice = "remove it: only the history of attempts is lost"
            record = read_kept(AttemptRecord, found, self.path, advice, RunDirectoryError)
            records[record.number] = record
        return list(records.values())

    def _write(self, record: AttemptRecord) -> None:
        self._unwritten[record.number] = record
        lines = "".join(one.model_dump_json() + "\n" for one in self._unwritten.values())
        if append_snapshot(self.path, lines.encode()):
            self._unwritten.clear()


def finished_outcome(directory: RunDirectory) -> Finished | None:
    """Return how a stage finished; None where it has not, or nobody watched an attempt to its end."""
    outcome = directory.read_outcome()
    return outcome if isinstance(outcome, Finished) and not AttemptLedger(directory).left_open() else None


def _raise(asked: Resources | None, steps: list[dict[str, Any]], limits: Limits) -> Resources | None:
    if asked is None:
        return None
    amounts = {"memory_mib": asked.memory_mib, "walltime_s": asked.walltime_s}
    most = {"memory_mib": limits.memory_mib, "walltime_s": limits.walltime_s}
    gpu_type = asked.gpu_type
    for step in steps:
        for key in amounts.keys() & step.keys():
            granted = min(step[key], most[key] or step[key])
            amounts[key] = max(amounts[key], granted)
        if "gpu_type" in step and step["gpu_type"][0] == gpu_type:
            gpu_type = step["gpu_type"][1]
    return asked.model_copy(update={**amounts, "gpu_type": gpu_type})
