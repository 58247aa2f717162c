"""The output directory of a training run: names of its files, and `run.json`, the index of its stages."""

import json
import os
import pwd
import re
import shlex
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from kdgat.base import UserError, write_bytes_atomically
from kdgat.base.files import make_folder, write_snapshot
from kdgat.base.kept import read_kept, refuse_newer
from kdgat.base.text import describe_pickled
from kdgat.cluster.usage import RUNS
from kdgat.stage import FailureKind, RunDirectory, RunDirectoryError, StageBusyError
from kdgat.stage.owner import SILENCE_S, Owner, own, require_free

SCHEMA_VERSION = 1
SLURM: Final = "slurm"
REPLAN: Final = "--replan"  # asked for once, and by no command that goes on
_RAISED: Final = re.compile(r"(?:\w+\.)*(?P<name>\w+): (?P<sentence>.+)")  # the last line of a traceback


class RunError(UserError):
    """An output directory is no run, is incomplete, or is in use; the text names it and the fix."""


class StageState(StrEnum):
    """Where a stage of a run stands."""

    PLANNED = "planned"
    RUNNING = "running"
    FINISHED = "finished"
    CACHED = "cached"  # had finished before this command
    PAUSED = "paused"  # stopped with a checkpoint
    FAILED = "failed"
    BLOCKED = "blocked"  # something it depends on failed or was stopped


DONE_STATES: Final = (StageState.FINISHED, StageState.CACHED)
ENDED_STATES: Final = (*DONE_STATES, StageState.PAUSED, StageState.FAILED, StageState.BLOCKED)


class StageRecord(BaseModel):
    """One stage in `run.json`."""

    model_config = ConfigDict(extra="forbid")

    name: str  # for instance "normal-large-seed0"
    stage: str
    scale: str
    seed: int
    depends_on: list[str] = Field(default_factory=list)
    directory: str | None = None  # relative to the output directory; unknown until the inputs exist
    identity: str | None = None
    state: StageState = StageState.PLANNED
    attempts: int = 0  # of the last command
    message: str = ""

    @property
    def reason(self) -> str:
        """Describe in one line why the stage ended as it did, without names of classes in front of the sentence.

        A mistake of the user is said by its first line, a defect by the last line of its traceback.

        >>> failed = StageRecord(name="a", stage="a", scale="large", seed=0, state=StageState.FAILED)
        >>> failed.model_copy(update={"message": "BAD_INPUT: x.csv is empty"}).reason
        'x.csv is empty'
        >>> failed.model_copy(update={"message": "ERROR: File a.py, line 1\\nKeyError: 'x'"}).reason
        "'x' (KeyError)"
        """
        text = self.message.strip()
        kind, _, evidence = text.partition(": ")
        if self.state != StageState.FAILED or kind not in FailureKind.__members__:
            return text.splitlines()[0] if text else ""
        lines = evidence.strip().splitlines() or [kind]
        if kind in (FailureKind.BAD_INPUT, FailureKind.NUMERIC):
            return lines[0]
        named = _RAISED.fullmatch(lines[-1].strip())
        return f"{named['sentence']} ({named['name']})" if named else lines[-1].strip()


class RunIndex(BaseModel):
    """The content of `run.json`."""

    model_config = ConfigDict(extra="forbid")

    schema_version: int = SCHEMA_VERSION
    family: str
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    config: dict[str, Any]
    stages: list[StageRecord]

    def record(self, name: str) -> StageRecord:
        """Return the stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)

    def short_names(self) -> dict[str, StageRecord]:
        """Return the stages by the shortest names that tell them apart: a scale or seed that all share is left out.

        >>> one = StageRecord(name="normal-large-seed0", stage="normal", scale="large", seed=0)
        >>> two = one.model_copy(update={"name": "normal-large-seed1", "seed": 1})
        >>> list(RunIndex(family="can", config={}, stages=[one, two]).short_names())
        ['normal-seed0', 'normal-seed1']
        """
        scales, seeds = ({(one.stage, getattr(one, key)) for one in self.stages} for key in ("scale", "seed"))
        found: dict[str, StageRecord] = {}
        for one in self.stages:
            parts = [one.stage]
            parts += [one.scale] if sum(stage == one.stage for stage, _ in scales) > 1 else []
            parts += [f"seed{one.seed}"] if sum(stage == one.stage for stage, _ in seeds) > 1 else []
            short = "-".join(parts)
            found[one.name if short in found else short] = one  # folds of a sweep
        return found

    def find(self, name: str) -> StageRecord:
        """Return the stage of a name, whole or short; RunError names those that there are."""
        short = self.short_names()
        found = short | {one.name: one for one in self.stages}
        if name not in found:
            raise RunError(f"no stage {name!r}; stages: {', '.join(short)}")
        return found[name]


class Exclusive(ABC):
    """A directory in which one command works at a time."""

    lock_path: Path
    owner_path: Path
    record_path: Path  # written by who works in it

    @abstractmethod
    def busy(self, text: str) -> ValueError:
        """Return the error for who comes second; `text` names the process that is there, and its host."""

    @contextmanager
    def lock(self) -> Iterator[Owner]:
        """Make the directory and be the only one in it; the error of `busy` where another process is."""
        self.require_allowed()
        self.lock_path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                owner = stack.enter_context(own(self.lock_path, self.owner_path, SILENCE_S))
            except (StageBusyError, RunDirectoryError) as error:
                raise self.busy(str(error)) from error
            stack.enter_context(owner.beating())
            yield owner

    def require_free(self) -> None:
        """Raise the same error before anything is started; make and change nothing.

        Where that cannot be told now, it is left to `lock`.
        """
        self.require_allowed()
        try:
            with suppress(RunDirectoryError):
                require_free(self.lock_path, self.owner_path)
        except StageBusyError as error:
            raise self.busy(str(error)) from error

    def require_allowed(self) -> None:
        """Leave the work of a newer kdgat, and of another user, whose jobs are not seen and would be made again."""
        folder = self.record_path.parent
        with suppress(OSError, json.JSONDecodeError, UnicodeDecodeError):  # it is made anew
            refuse_newer(json.loads(self.record_path.read_bytes()), self.record_path, self.busy)
        user = os.geteuid()
        try:
            owner = self.record_path.stat().st_uid
            # Filesystems that map users map this one, too, where it may write.
            with suppress(PermissionError), tempfile.TemporaryFile(dir=folder) as probe:
                user = os.fstat(probe.fileno()).st_uid
        except OSError:  # none yet; or nothing can be written there, as whoever writes next is told
            return
        if owner != user and (user != 0 or (folder / SLURM).is_dir()):  # root goes on with what has no jobs
            name = str(owner)
            with suppress(KeyError):
                name = pwd.getpwuid(owner).pw_name
            raise self.busy(
                f"{folder} is of user {name}, who alone goes on with it, as jobs and files in it are theirs: ask them, "
                "or copy it while nothing of it runs"
            )


class OutputDirectory(Exclusive):
    """Names and readers of what a training run leaves behind.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     output = OutputDirectory(folder)
    ...     record = StageRecord(name="normal-large-seed0", stage="normal", scale="large", seed=0)
    ...     output.write_index(RunIndex(family="can", config={}, stages=[record]))
    ...     output.read_index().record("normal-large-seed0").state.value
    'planned'
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.index_path = self.record_path = self.path / "run.json"
        self.plan_path = self.path / "plan.json"  # of which jobs may be under way
        self.stages_path = self.path / "stages"
        self.command_path = self.path / "command.sh"  # that a person gave last
        self.latest_path = self.path / "latest"  # links to run directories, under short names
        self.evaluations_path = self.path / "evaluations"  # on other recordings, where jobs did it
        self.results_path = self.path / "results.json"
        self.report_path = self.path / "report.html"
        self.lock_path = self.path / "run.lock"
        self.owner_path = self.path / "run-owner.json"
        self.slurm_path = self.path / SLURM  # what jobs print
        self.prefect_database_path = self.path / "prefect" / "prefect.db"  # as it was when it was last copied here
        self.prefect_log_path = self.path / "prefect" / "server.log"

    def read_index(self, family: str | None = None) -> RunIndex:
        """Read `run.json`; RunError if there is none, it is damaged, or it is of another family than the one given."""
        try:
            content = self.index_path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            advice = "give the directory that was --out of `kdgat train`"
            if (listed := Path(RUNS, self.index_path)).is_file():
                advice = f"`kdgat runs list` has it in {RUNS}: give {listed.parent}"
            missing = f"is not the output of a training run: {self.index_path.name} is missing; {advice}"
            raise RunError(f"{self.path} {describe_pickled(self.path, advice) or missing}") from None
        index = read_kept(RunIndex, content, self.index_path, "run the training command again", RunError)
        if family not in (None, index.family):
            raise RunError(f"{self.path} is a run of family {index.family!r}: name one of `kdgat train {family}`")
        return index

    def require_family(self, family: str) -> None:
        """Refuse a directory that holds a run of another family, whose index and results would be replaced."""
        try:
            found = self.read_index().family
        except RunError:  # no run, or nothing that can be read
            return
        if found != family:
            raise RunError(f"--out {self.path} holds a run of {found}, not of {family}: choose another --out")

    def note_command(self, words: Sequence[str]) -> None:
        """Keep the command that a person has given, for whoever goes on with it; not that of a job that repeats it."""
        if not (self.command_path.is_file() and "SLURM_JOB_ID" in os.environ) and make_folder(self.path):
            command = shlex.join(["kdgat", *(word for word in words if word != REPLAN)])
            write_snapshot(self.command_path, f"cd {shlex.quote(str(Path.cwd()))} && {command}\n".encode())

    def give_up_plan(self) -> None:
        """Forget the plan that jobs may be at: the next command makes its own, and cancels what that one has not."""
        with self.lock():
            self.plan_path.unlink(missing_ok=True)

    def write_index(self, index: RunIndex) -> None:
        """Write `run.json` atomically."""
        write_bytes_atomically(self.index_path, _as_bytes(index))

    def note_index(self, index: RunIndex) -> None:
        """Write `run.json` while stages run, which none of them ends for: see `write_snapshot`."""
        write_snapshot(self.index_path, _as_bytes(index))

    def stage_directory(self, record: StageRecord) -> RunDirectory:
        """Return the run directory of a stage; RunError if it has none yet."""
        if record.directory is None:
            raise RunError(f"{record.name} in {self.path} has not started ({record.state}): run the training again")
        return RunDirectory(self.path / record.directory)

    def link_latest(self, index: RunIndex, name: str) -> None:
        """Let `latest/STAGE` lead to the run directory of a stage; links of stages that the run lacks are removed.

        They are for people: where a filesystem has no links, `kdgat runs path` finds the directory, too.
        """
        names = {record.name: short for short, record in index.short_names().items()}
        link, target = self.latest_path / names[name], self.path / str(index.record(name).directory)
        temporary = link.with_name(f".{link.name}")
        with suppress(OSError):
            self.latest_path.mkdir(exist_ok=True)
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(os.path.relpath(target, self.latest_path))
            temporary.replace(link)
            for other in set(self.latest_path.iterdir()) - {self.latest_path / one for one in names.values()}:
                if other.is_symlink():
                    other.unlink()

    def busy(self, text: str) -> RunError:
        """Return the error of a second command that trains into this directory."""
        return RunError(f"{text}; or choose another --out")


def _as_bytes(index: RunIndex) -> bytes:
    return (index.model_dump_json(indent=2) + "\n").encode()
