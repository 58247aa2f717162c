"""Windows scored by attention networks on all cores: in this process, and in others beside it.

Each process computes on one core. Windows are cut into pieces that depend on the recording alone, and each piece is
scored by itself, so the scores are the same to the last bit on any number of processes.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Pipe
from queue import SimpleQueue
from threading import Lock
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from kdgat.can.models.runtime import Network, Windows
from kdgat.graphs import GraphColumns
from kdgat.stage.work import peak_kib

logger = logging.getLogger(__name__)

WINDOWS_PER_PIECE: Final = 64  # at the end, processes wait for each other as long as one piece takes
# Set before a library that computes is loaded: its threads would take each other's cores.
ONE_CORE: Final = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
}

END_S: Final = 10.0  # that a process may take to end after its socket is closed

Logits = NDArray[np.float32]  # of windows [G]


@dataclass(frozen=True)
class Pieces:
    """Windows that are being scored."""

    pieces: list[Windows] = field(default_factory=list)
    futures: list[Future[list[Logits]]] = field(default_factory=list)  # of each, where there are other processes


class ScoringProcesses:
    """Score windows by networks; a context that ends the processes that it has started.

    They start, and load the networks, while this process goes on.
    """

    def __init__(self, models: Sequence[bytes], processes: int = 1) -> None:
        """Load exported models; use so many processes, this one among them."""
        self._workers: SimpleQueue[_Worker] = SimpleQueue()
        self._all = [_Worker() for _ in range(processes - 1)]
        self._num_alive = len(self._all)
        self._lock = Lock()
        # Reading needs numba in any case, and beside other threads it takes longer to load.
        importlib.import_module("kdgat.base.machine_code")
        self._threads = ThreadPoolExecutor(max(1, processes - 1), "scoring")
        for worker in self._all:
            self._threads.submit(self._prepare, worker, list(models))
        self._models = list(models)
        self._has_warned = False
        self.others_mib = 0  # the most memory of the other processes, all of them; known when they have ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # a signal, say: whoever has to leave waits for no answer
            for worker in self._all:
                worker.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._all:
            worker.end()
        self.others_mib = sum(worker.peak_mib for worker in self._all)

    def begin(self, graphs: GraphColumns, begun: Pieces | None = None) -> Pieces:
        """Begin to score windows in the other processes, behind those of their recording that were begun before."""
        begun = Pieces() if begun is None else begun
        for start in range(0, graphs.num_graphs, WINDOWS_PER_PIECE):
            piece = Windows.of(graphs, start, min(start + WINDOWS_PER_PIECE, graphs.num_graphs))
            begun.pieces.append(piece)
            if self._all:
                begun.futures.append(self._threads.submit(self._ask, piece))
        return begun

    def finish(self, begun: Pieces) -> list[Logits]:
        """Return the logits of each network; what no other process has begun with is scored here."""
        found: list[list[Logits] | None] = [None] * len(begun.pieces)
        for place in reversed(range(len(begun.pieces))):
            if not begun.futures or begun.futures[place].cancel():
                found[place] = self._score(begun.pieces[place])
        done = [self._answer(begun, place) if one is None else one for place, one in enumerate(found)]
        empty = np.zeros(0, np.float32)
        return [np.concatenate([empty, *(piece[place] for piece in done)]) for place in range(len(self._models))]

    @cached_property
    def _networks(self) -> list[Network]:
        """Load them when they are needed: the others have windows to score by then."""
        return [Network(model) for model in self._models]

    def _answer(self, begun: Pieces, place: int) -> list[Logits]:
        """Return what another process has found; of one that has ended, what this one finds, which is the same."""
        try:
            return begun.futures[place].result()
        except ChildProcessError as error:
            if not self._has_warned:
                logger.warning("%s; its windows are scored by the process that started it", error)
                self._has_warned = True
            return self._score(begun.pieces[place])

    def _score(self, windows: Windows) -> list[Logits]:
        return [network.score(windows)[0] for network in self._networks]

    def _prepare(self, worker: _Worker, models: list[bytes]) -> None:
        try:
            worker.load(models)
        finally:
            self._workers.put(worker)

    def _ask(self, windows: Windows) -> list[Logits]:
        worker = self._workers.get()
        is_used_again = True
        try:
            return worker.score(windows)
        except ChildProcessError:
            is_used_again = self._is_last()
            raise
        finally:
            if is_used_again:
                self._workers.put(worker)

    def _is_last(self) -> bool:
        """Count out a process that has ended: asked again, it would answer first each time. The last one stays.

        Without any, whoever asks would wait for ever.
        """
        with self._lock:
            is_last = self._num_alive == 1
            self._num_alive -= not is_last
        return is_last


class _Worker:
    """One other process."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "kdgat.can.evaluation.scoring_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_CORE},
            )
        self.peak_mib = 0

    def load(self, models: list[bytes]) -> None:
        """Hand it the networks, once it has started; one that does not take them ends, as whoever asks it is told."""
        try:
            self._connection.send(models)
        except (OSError, MemoryError):
            self.kill()

    def score(self, windows: Windows) -> list[Logits]:
        try:
            self._connection.send(windows)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise ChildProcessError(
                f"a process that scores windows ended with status {self._process.wait()}; a negative one is a signal, "
                "and -9 mostly means too little memory"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        logits: list[Logits] = answer
        return logits

    def kill(self) -> None:
        """End the process wherever it is: it holds nothing."""
        self._process.kill()

    def end(self) -> None:
        """Close the socket, which ends the process; note its memory before."""
        with contextlib.suppress(OSError):  # it has ended
            self.peak_mib = (peak_kib(self._process.pid) or 0) >> 10
        self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
