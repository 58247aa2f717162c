"""Windows scored by exported networks on all cores: in this process, and in others beside it.

Each process computes on one core. Windows are cut into pieces that depend on the recording alone, and each piece is
scored by itself, so the scores are the same to the last bit on any number of processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from kdgat.can.detection.network import Network, Windows
from kdgat.can.evaluation.turns import Unsure, score_in_turn
from kdgat.graphs.columns import GraphColumns
from kdgat.stage.memory import peak_kib

logger = logging.getLogger(__name__)

WINDOWS_PER_PIECE: Final = 256
WORTHWHILE_WINDOWS: Final = 1024  # of a recording, from which other processes are started: each takes half a second
# Set before a library that computes is loaded: its threads would take each other's cores.
ONE_CORE: Final = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
}

END_S: Final = 10.0  # that a process may take to end after its socket is closed

Logits = tuple[NDArray[np.float32], NDArray[np.float32]]  # of windows [G] and of nodes [N]


class ScoringProcessError(RuntimeError):
    """A process that scores has ended."""


class Pieces:
    """Windows that are being scored."""

    def __init__(self, pieces: Sequence[Windows], futures: Sequence[Future[list[Logits]]]) -> None:
        self.pieces, self.futures = pieces, futures


class ScoringProcesses:
    """Score windows by networks; a context that ends the processes that it has started."""

    def __init__(self, models: Sequence[bytes], processes: int = 1, unsure: Unsure | None = None) -> None:
        """Load exported models; use so many processes at most, this one among them.

        With `unsure`, all but the first score only the windows of which that one is unsure (`score_in_turn`).
        """
        self._models = list(models)
        self._networks = [Network(model) for model in self._models]
        self._unsure = unsure
        self._workers: SimpleQueue[_Worker] = SimpleQueue()
        self._all = [_Worker(self._models, unsure) for _ in range(processes - 1)]
        for worker in self._all:
            self._workers.put(worker)
        self._threads = ThreadPoolExecutor(max(1, processes - 1), "scoring")
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

    def begin(self, graphs: GraphColumns) -> Pieces:
        """Begin to score the windows of a recording in the other processes."""
        borders = range(0, graphs.num_graphs, WINDOWS_PER_PIECE)
        pieces = [Windows.of(graphs, start, min(start + WINDOWS_PER_PIECE, graphs.num_graphs)) for start in borders]
        is_worthwhile = bool(self._all) and graphs.num_graphs >= WORTHWHILE_WINDOWS
        return Pieces(pieces, [self._threads.submit(self._ask, one) for one in pieces] if is_worthwhile else [])

    def finish(self, begun: Pieces) -> list[Logits]:
        """Return the logits of each network; what no other process has begun with is scored here."""
        found: list[list[Logits] | None] = [None] * len(begun.pieces)
        for place in reversed(range(len(begun.pieces))):
            if not begun.futures or begun.futures[place].cancel():
                found[place] = self._score(begun.pieces[place])
        done = [self._answer(begun, place) if one is None else one for place, one in enumerate(found)]
        empty = np.zeros(0, np.float32)
        return [
            (
                np.concatenate([empty, *(piece[place][0] for piece in done)]),
                np.concatenate([empty, *(piece[place][1] for piece in done)]),
            )
            for place in range(len(self._networks))
        ]

    def _answer(self, begun: Pieces, place: int) -> list[Logits]:
        """Return what another process has found; of one that has ended, what this one finds, which is the same."""
        try:
            return begun.futures[place].result()
        except ScoringProcessError as error:
            if not self._has_warned:
                logger.warning("%s; its windows are scored by the process that started it", error)
                self._has_warned = True
            return self._score(begun.pieces[place])

    def _score(self, windows: Windows) -> list[Logits]:
        return score_in_turn(self._networks, windows, self._unsure)

    def _ask(self, windows: Windows) -> list[Logits]:
        worker = self._workers.get()
        try:
            return worker.score(windows)
        finally:
            self._workers.put(worker)


class _Worker:
    """One other process, started when it is asked for the first time."""

    def __init__(self, models: Sequence[bytes], unsure: Unsure | None) -> None:
        self._models, self._unsure = models, unsure
        self._connection: Connection[Any, Any] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.peak_mib = 0

    def score(self, windows: Windows) -> list[Logits]:
        if self._connection is None:
            self._connection = self._start()
        try:
            self._connection.send(windows)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            status = None if self._process is None else self._process.wait()
            raise ScoringProcessError(
                f"a process that scores windows ended with status {status}; a negative one is a signal, and -9 mostly "
                "means too little memory"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        logits: list[Logits] = answer
        return logits

    def _start(self) -> Connection[Any, Any]:
        ours, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kdgat.can.evaluation.scoring_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_CORE},
            )
        ours.send((self._models, self._unsure))
        return ours

    def kill(self) -> None:
        """End the process wherever it is: it holds nothing."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Close the socket, which ends the process; note its memory before."""
        if self._process is not None:
            with contextlib.suppress(OSError):  # it has ended
                self.peak_mib = (peak_kib(self._process.pid) or 0) >> 10
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            try:
                self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
