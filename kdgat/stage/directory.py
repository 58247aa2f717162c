"""The run directory: all file names of a stage in one class, its inputs and its progress."""

import json
import logging
import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kdgat.base import UserError, write_bytes_atomically
from kdgat.base.files import append_lines, ask_anew, list_folders, remove_temporary_files, to_json, write_snapshot
from kdgat.base.hashes import GONE, KnownHashes
from kdgat.base.kept import read_kept, refuse_newer
from kdgat.base.lines import whole_objects
from kdgat.stage.errors import RunDirectoryError, RunDirectoryMissingError, StageInputError
from kdgat.stage.outcome import Finished, Outcome, parse_outcome
from kdgat.stage.owner import Owner, own
from kdgat.stage.spec import StageSpec
from kdgat.stage.work import WRITE_INTERVAL_S, Work

logger = logging.getLogger(__name__)

CHECKPOINT_GLOB = "checkpoint-*.pt"
PART_GLOB = "*.json"
JOINED_GLOB = "*.h5"  # stores that parts were joined to
PROGRESS_INTERVAL_S = 1.0
RECENT = 10  # reports, which tell how fast a phase goes now


class RunDirectory:
    """Names, readers and writers of everything that one stage leaves behind.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     directory = RunDirectory(folder).create(StageSpec(family="can", stage="normal", seed=0))
    ...     directory.read_spec().stage, directory.is_finished()
    ('normal', False)
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.spec_path = self.path / "spec.json"
        self.outcome_path = self.path / "outcome.json"
        self.log_path = self.path / "stage.log"
        self.progress_path = self.path / "progress.json"
        self.metrics_path = self.path / "metrics.jsonl"
        self.weights_path = self.path / "weights.safetensors"
        self.model_config_path = self.path / "model.json"
        self.checkpoints_path = self.path / "checkpoints"
        self.parts_path = self.path / "parts"  # of a stage that works part by part: PART_GLOB stands for each one done
        self.owner_path = self.path / "owner.json"
        self.lock_path = self.path / "owner.lock"
        self.hashes_path = self.path / "hashes.json"  # of inputs and artifacts
        self.watcher_path = self.path / "watcher.json"  # who starts attempts
        self.provenance_path = self.path / "provenance.json"
        self.attempts_path = self.path / "attempts.jsonl"
        self.work_path = self.path / "work.json"
        self.profile_path = self.path / "profile"  # folder
        self.used_spec: StageSpec | None = None  # of the process that runs the stage, with inputs where it reads them
        self.quiet = False  # set by the runner: no progress on stderr
        self.work = Work()  # of this process
        self._work_written = 0.0
        self._owner: Owner | None = None

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    def create(self, spec: StageSpec) -> "RunDirectory":
        """Make the directory for `spec`; one that is there already must have the same identity."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.spec_path.exists():
            found = self.read_spec()
            if found.identity() != spec.identity():
                raise RunDirectoryError(
                    f"{self.path} belongs to spec {found.identity()}, not {spec.identity()}: use another directory"
                )
        # Written again even if the identity is the same: paths of inputs may have moved.
        write_bytes_atomically(self.spec_path, (spec.model_dump_json(indent=2) + "\n").encode())
        return self

    def read_spec(self) -> StageSpec:
        """Read `spec.json`; RunDirectoryError if it is missing or invalid."""
        try:
            content = self.spec_path.read_bytes()
        except FileNotFoundError:
            raise RunDirectoryMissingError(
                f"{self.path} is no run directory: {self.spec_path.name} is missing; "
                "if it is there on other machines, its filesystem is not mounted on this one"
            ) from None
        except ValueError as error:  # a path that no file can have
            raise RunDirectoryError(f"{self.spec_path} is not a valid spec: {error}") from error
        advice = "put a good copy of it back, or plan the stage again, into another directory"
        return read_kept(StageSpec, content, self.spec_path, advice, RunDirectoryError)

    def read_outcome(self) -> Outcome | None:
        """Read `outcome.json`; None before the first attempt ended."""
        ask_anew(self.path)  # a stage on another node has written it just now
        try:
            return parse_outcome(self.outcome_path.read_bytes(), self.outcome_path)
        except FileNotFoundError:
            return None

    def write_outcome(self, outcome: Outcome) -> None:
        """Write `outcome.json` atomically; a finished run is never overwritten."""
        self.check_owner()
        if self.is_finished():
            raise RunDirectoryError(f"{self.path} is finished already: nothing overwrites a finished run")
        write_bytes_atomically(self.outcome_path, (outcome.model_dump_json(indent=2) + "\n").encode())

    def remove_outcome(self) -> None:
        """Forget how an earlier attempt ended: if this one is killed, nobody shall read the old outcome as its own."""
        self.check_owner()
        if self.is_finished():
            raise RunDirectoryError(f"{self.path} is finished already: nothing overwrites a finished run")
        self.outcome_path.unlink(missing_ok=True)

    def is_finished(self) -> bool:
        """Return whether the stage finished."""
        return isinstance(self.read_outcome(), Finished)

    def changed_artifacts(self) -> dict[str, str]:
        """Say of a finished stage's artifacts that are not as it wrote them what they are: gone, cut short, changed."""
        outcome, known = self.read_outcome(), KnownHashes(self.hashes_path)
        names = outcome.artifacts.values() if isinstance(outcome, Finished) else ()
        return {name: how for name in names if (how := known.change(self.path / name))}

    def reopen(self) -> str:
        """Let a finished stage run again if an artifact is not as it was written, and say so; empty if all are.

        What was changed stays beside it, as NAME.changed. StageBusyError if another process owns the directory.
        """
        if not self.changed_artifacts():
            return ""
        with self.lock():
            changed = self.changed_artifacts()
            for name in (name for name, how in changed.items() if how != GONE):
                (self.path / name).replace(self.path / f"{name}.changed")
            shutil.rmtree(self.parts_path, ignore_errors=True)  # summaries of what has been joined and removed
            self.hashes_path.unlink(missing_ok=True)
            self.outcome_path.unlink(missing_ok=True)
        return f"its {' and '.join(f'{name} is {how}' for name, how in changed.items())}: made again"

    def append_metrics(self, row: Mapping[str, object]) -> None:
        """Append one row to `metrics.jsonl`."""
        self.check_owner()
        append_lines(self.metrics_path, f"{json.dumps(row)}\n".encode())

    def read_metrics(self) -> list[dict[str, object]]:
        """Read the rows of `metrics.jsonl`; a damaged line is left out, with a warning if it is not just cut short.

        Nothing is resumed from it: training writes the rows that its checkpoint has anew.
        """
        if not self.metrics_path.exists():
            return []
        rows: list[dict[str, object]] = []
        lines = self.metrics_path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            found = [json.loads(one) for one in whole_objects(line, "fit|epoch")]
            found = [row for row in found if isinstance(row, dict)]
            if line and not found and number < len(lines):
                logger.warning("%s: line %d is damaged and left out: %r", self.metrics_path, number, line[:80])
            for row in found:
                refuse_newer(row, f"{self.metrics_path}: line {number}", RunDirectoryError)
            rows += found
        return rows

    def replace_metrics(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Write `metrics.jsonl` anew, atomically: a resumed stage drops rows past its checkpoint."""
        self.check_owner()
        write_bytes_atomically(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def write_progress(self, progress: Mapping[str, object]) -> None:
        """Write `progress.json` for whoever watches; not durable, because nothing is resumed from it."""
        write_snapshot(self.progress_path, to_json(dict(progress)), durable=False)

    def write_work(self, *, now: bool = True) -> None:
        """Write `work.json`; not `now`, if that was done a moment ago."""
        if now or time.monotonic() - self._work_written >= WRITE_INTERVAL_S:
            self._work_written = time.monotonic()
            write_snapshot(self.work_path, to_json(self.work.model_dump()), durable=False)

    def read_work(self) -> Work | None:
        """Read what the last process of the stage did; None if none has begun, or its file cannot be understood."""
        try:
            return read_kept(Work, self.work_path.read_bytes(), self.work_path, "nothing is resumed from it")
        except (OSError, UserError):
            return None

    def newest_checkpoint(self) -> str:
        """Return the newest checkpoint, or the newest part, relative to the run directory; empty if there is none.

        Of one fit it is the one with the highest number, for the clocks of two nodes may disagree; of several fits the
        one that was written to last.
        """
        written: dict[Path, int] = {}  # folder of a fit: nanoseconds
        newest: dict[Path, Path] = {}
        for path in list_folders(self.checkpoints_path, CHECKPOINT_GLOB):
            with suppress(FileNotFoundError):  # the stage that writes them removes old ones while we look
                written[path.parent] = max(path.stat().st_mtime_ns, written.get(path.parent, 0))
                # Numbers have leading zeros: names sort as they do.
                newest[path.parent] = max(path, newest.get(path.parent, path))
        if not written:
            for path in list_folders(self.parts_path, PART_GLOB):
                with suppress(OSError):  # one of many, and only the newest is named
                    written[path] = path.stat().st_mtime_ns
                    newest[path] = path
        return str(newest[max(written, key=lambda fit: written[fit])].relative_to(self.path)) if written else ""

    @contextmanager
    def lock(self) -> Iterator["RunDirectory"]:
        """Be the only writer while the context lasts; StageBusyError names pid and host of another one."""
        if not self.path.is_dir():
            raise RunDirectoryMissingError(f"{self.path} does not exist: create it from a spec first")
        with own(self.lock_path, self.owner_path) as owner:
            self._owner = owner
            # Whoever starts attempts writes these without owning the directory.
            remove_temporary_files(self.path, others=(self.spec_path, self.watcher_path))
            try:
                yield self
            finally:
                self._owner = None

    def check_owner(self) -> None:
        """Raise OwnerLostError if another process took the directory over since `lock` was entered."""
        if self._owner is not None:
            self._owner.check()


def input_path(spec: StageSpec, directory: RunDirectory, name: str) -> Path:
    """Return the file of an input; StageInputError if the spec does not name it."""
    if name not in spec.inputs:
        known = ", ".join(sorted(spec.inputs)) or "none"
        raise StageInputError(f"stage {spec.stage!r} needs an input {name!r} (the spec has: {known}): plan it again")
    return spec.inputs[name].resolve(directory.path)


def phase_progress(directory: RunDirectory, phase: str) -> Callable[[int, int], None]:
    """Return a callback that writes the progress of a phase without training: preparing, scoring, making parts."""
    last_written = -math.inf
    written: deque[tuple[float, int]] = deque(maxlen=RECENT)
    first: tuple[float, int] | None = None

    def report(done: int, total: int) -> None:
        nonlocal last_written, first
        now = time.monotonic()
        first = first or (now, done)
        if done == total or now - last_written >= PROGRESS_INTERVAL_S:
            last_written = now
            # By all that was done, and by what was done last: the first item may wait for kernels that compile.
            rates = [(now - then) / (done - before) for then, before in (first, *list(written)[:1]) if done > before]
            written.append((now, done))
            left = [round(rate * (total - done), 1) for rate in rates]
            known = {"left_low_s": min(left), "left_high_s": max(left), "more_follows": True} if left else {}
            directory.write_progress({"phase": phase, "done": done, "total": total, **known})

    return report
