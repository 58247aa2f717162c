"""The other ranks of a fit: started by the stage, watched, and ended with the fit.

Each is a process that resumes the stage, as another attempt would, up to the fit that it is wanted in. A stage that
can be killed at any moment computes what comes before a fit once and keeps it in files, so this is quick. What a rank
writes on its way stays in a mirror of the run directory, which is thrown away: rank 0, the stage itself, is the only
one that writes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import torch

from kdgat.base import ConfigurationError, num_usable_cores, wait_until
from kdgat.stage import EnvironmentFaultError, RunDirectory
from kdgat.stage.gpus import VISIBLE_VARIABLE, num_given_gpus
from kdgat.stage.outcome import EXIT_ENVIRONMENT
from kdgat.stage.process import leave
from kdgat.stage.work import peak_kib
from kdgat.training import TrainingConfig
from kdgat.training.ranks.end import LOST, RankEnd, describe_end, log_path
from kdgat.training.ranks.group import Group, Ranks, Seat, is_seated, seat_at

logger = logging.getLogger(__name__)

POLL_S: Final = 0.1
NOTICE_S: Final = 30.0  # within which a rank has ended after its connections were closed, on a machine that is busy
STUCK_S: Final = 60.0  # a fit that has lost a rank, and has not ended by then, waits for something
# What a stage keeps about its attempts: a rank makes none.
NOT_MIRRORED: Final = frozenset(
    {
        "attempts.jsonl", "hashes.json", "metrics.jsonl", "outcome.json", "owner.json", "owner.lock", "progress.json",
        "provenance.json", "spec.json", "stage.log", "watcher.json", "watcher.lock", "work.json",
    }
)  # fmt: skip


def num_ranks(config: TrainingConfig, device: torch.device) -> int:
    """Return how many processes train together: as configured, else one on each GPU that the job was given.

    Raises:
        ConfigurationError: if there are fewer GPUs than are asked for.
        EnvironmentFaultError: if the job was given more GPUs than torch sees.
    """
    if is_seated():  # a rank of a later fit goes through one that is done: by itself, and it sees its own GPU alone
        return 1
    if device.type != "cuda":
        return config.num_ranks or 1
    given, seen = num_given_gpus(), torch.cuda.device_count()
    wanted = config.num_ranks or max(given, 1)
    if wanted <= seen:
        return wanted
    if given >= wanted:
        raise EnvironmentFaultError(f"the job was given {given} GPUs and torch sees {seen}")
    raise ConfigurationError(
        f"training.num_ranks={wanted}: each rank needs a GPU of its own, and there are {seen}: ask for as many by "
        "resources.STAGE.gpus or --gpus, or leave training.num_ranks out"
    )


def mirror(directory: RunDirectory, path: Path) -> RunDirectory:
    """Make a folder that shows what a run directory has, and keeps what is written into it to itself.

    Files are links; whoever writes one replaces it, as stages do. The spec names its inputs by absolute paths.
    """
    spec = directory.read_spec()
    inputs = {
        name: source.model_copy(update={"path": str(source.resolve(directory.path).absolute())})
        for name, source in (directory.used_spec or spec).inputs.items()
    }
    shown = RunDirectory(path).create(spec.model_copy(update={"inputs": inputs}))
    for folder, _, names in os.walk(directory.path.absolute()):
        place = path / Path(folder).relative_to(directory.path.absolute())
        place.mkdir(exist_ok=True)
        for name in names:
            is_shown = place != path or name not in NOT_MIRRORED
            if is_shown and not (name.startswith(".") and name.endswith(".tmp")):
                (place / name).symlink_to(Path(folder, name))
    return shown


class RankProcesses:
    """The processes of all ranks but this one, which is rank 0."""

    def __init__(self, directory: RunDirectory, seat: Seat, environments: Mapping[int, Mapping[str, str]]) -> None:
        """Start them.

        Args:
            directory: of the stage.
            seat: of rank 0.
            environments: what each rank has beside the environment of this process.
        """
        self.seat, self._work = seat, directory.work
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._is_over = threading.Event()
        self._lost = threading.Event()
        self._ends: list[RankEnd] = []  # of those that were lost
        self._watch = threading.Thread(target=self._look, name="ranks", daemon=True)
        try:
            for rank in range(1, seat.count):
                mirror(directory, rank_path(seat.folder, rank))
                self._processes[rank] = self._start(rank, environments.get(rank, {}))
            self._watch.start()
        except BaseException:
            self.end()
            raise

    def wait_until_there(self, check: Callable[[], None]) -> None:
        """Wait until all ranks have announced themselves; `check` is called again and again, and may raise."""
        missing = list(self._processes)

        def are_there() -> bool:
            check()
            if self._lost.is_set():
                raise self.explain(RuntimeError("a rank ended before it came to the fit"))
            missing[:] = [rank for rank in missing if not self.seat.ready_path(rank).exists()]
            return not missing

        while not wait_until(are_there, limit_s=60.0, poll_s=POLL_S):
            logger.info("waiting for rank %s of the fit", ", ".join(map(str, missing)))

    def is_lost(self) -> bool:
        """Return whether a rank is gone that should be there."""
        return self._lost.is_set()

    def explain(self, error: Exception) -> Exception:
        """Return how the rank ended whose end is the reason for a broken connection."""
        if not self._lost.wait(2 * NOTICE_S):
            return EnvironmentFaultError(f"the connection to the other ranks broke, and all of them live: {error}")
        # Those that lost the connection to another are not to blame.
        return min(self._ends, key=lambda end: (end.kind == LOST, end.status > 0, end.rank)).error()

    def end(self) -> None:
        """End all of them: they have nothing that anybody needs."""
        self._is_over.set()
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        if self._watch.ident is not None:
            self._watch.join()

    def _start(self, rank: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-P", "-m", "kdgat.training.ranks.rank", str(self.seat.folder), f"--rank={rank}",
            f"--count={self.seat.count}", f"--fit={self.seat.fit}", f"--parent={os.getpid()}",
        ]  # fmt: skip
        with log_path(self.seat.folder, rank).open("wb") as log:
            # In the process group of the stage: who kills that, kills them.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environment}
            )

    def _look(self) -> None:
        """Look until the fit is over; where a rank is gone, end the others, so that nobody waits for it."""
        while not self._is_over.wait(POLL_S):
            if all(process.poll() in (None, 0) for process in self._processes.values()):
                self._note_memory()
                continue
            # One that has lost a connection may end before the one that it was connected to. And where all ranks meet
            # the same error, rank 0 ends by it, too.
            wait_until(lambda: self._is_over.is_set() or any(end.kind != LOST for end in self._bad_ends()), NOTICE_S)
            if self._is_over.wait(POLL_S):
                return
            self._ends = self._bad_ends()
            self._lost.set()
            for process in self._processes.values():
                if process.poll() is None:
                    process.kill()
            if not self._is_over.wait(STUCK_S):
                logger.error("%s; nothing else ends this fit: leaving", self.explain(RuntimeError("stuck")))
                leave(EXIT_ENVIRONMENT)
            return

    def _bad_ends(self) -> list[RankEnd]:
        return [
            describe_end(self.seat.folder, rank, process.pid, status)
            for rank, process in self._processes.items()
            if (status := process.poll()) is not None and status != 0
        ]

    def _note_memory(self) -> None:
        """Note what they take, for estimates of later jobs."""
        total_kib = 0
        for process in self._processes.values():
            with suppress(OSError):  # it has just ended
                total_kib += peak_kib(process.pid) or 0
        self._work.note_others("ranks", total_kib >> 10)


@contextmanager
def open_ranks(
    directory: RunDirectory, fit: str, count: int, device: torch.device, check: Callable[[], None]
) -> Iterator[Ranks]:
    """Have as many ranks for a fit as are wanted while the context lasts, this process being one of them.

    Args:
        directory: of the stage.
        fit: its name.
        count: how many; 1 starts nothing.
        device: on which this process trains.
        check: called while the others start, which takes seconds; may raise to leave.
    """
    if (seat := seat_at(fit)) is not None:
        seat.announce()
        group = Group(seat)
        yield group
        group.close()  # not after an error: the others shall learn of the end with its reason, when the process ends
        return
    if is_seated():
        raise RuntimeError(f"this process is a rank of another fit, and came to fit {fit!r}, which is not done")
    if count == 1:
        yield Ranks()
        return
    with ExitStack() as stack:
        seat = Seat(0, count, fit, stack.enter_context(meeting_place(directory)))
        processes = RankProcesses(directory, seat, gpu_environments(count, device))
        stack.callback(processes.end)
        processes.wait_until_there(check)
        group = Group(seat, processes.explain, processes.is_lost)
        stack.callback(group.close)
        logger.info("%s%d processes train together", f"{fit}: " if fit else "", count)
        warn_of_few_cores(count * torch.get_num_threads())
        yield group


@contextmanager
def meeting_place(directory: RunDirectory) -> Iterator[Path]:
    """Yield a new folder on a disk of this machine; those that killed attempts at this stage have left are removed.

    The stage owns its run directory, so nobody else uses them.
    """
    prefix = f"kdgat-ranks-{hashlib.sha256(str(directory.path.absolute()).encode()).hexdigest()[:12]}-"
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def warn_of_few_cores(num_threads: int) -> None:
    """Say that threads take turns, where they do."""
    if (num_cores := num_usable_cores()) < num_threads:
        logger.warning(
            "%d threads of the processes that train together share %d processor cores: ask for cores=%d",
            num_threads,
            num_cores,
            num_threads,
        )


def gpu_environments(count: int, device: torch.device) -> dict[int, dict[str, str]]:
    """Give each rank the GPU of its number among those that this process sees, by rank."""
    if device.type != "cuda":
        return {}
    stated = os.environ.get(VISIBLE_VARIABLE)
    names = list(map(str, range(count))) if stated is None else [name.strip() for name in stated.split(",")]
    return {rank: {VISIBLE_VARIABLE: names[rank]} for rank in range(count)}


def rank_path(folder: Path, rank: int) -> Path:
    """Name the run directory of a rank."""
    return folder / f"rank-{rank}"
