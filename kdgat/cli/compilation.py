"""What a person is told while numba compiles, a minute of a first call on a machine, and how Ctrl-C ends it.

    python -m kdgat.cli.compilation      # compile now, as `make install` does

Machine code is kept beside the sources, or in NUMBA_CACHE_DIR (`kdgat.base.machine_code`), for each kind of processor.
After an update kernels are compiled anew whose sources have changed.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from kdgat.run import counted
from kdgat.run.end import EXIT_STOPPED

COMPILING: Final = "compiling for this machine, a few seconds up to two minutes; kept for the next times"
STOPPED: Final = "stopped while compiling; what is compiled is kept: the next run goes on there"
REDRAWN_S: Final = 1.0  # time between two states of a line on a terminal,
TOLD_S: Final = 30.0  # and between two lines elsewhere
OVER_S: Final = 1.0  # without a kernel, after which compilation is over
ERASE: Final = "\r\x1b[K"


class Compilation:
    """Tell on standard error that numba compiles, how far it is, and what it came to; from another thread meanwhile.

    numba's compiler is Python for the most part, and LLVM works without the lock: both threads have their turn.
    """

    def __init__(self, *, quiet: bool) -> None:
        """Tell nothing if `quiet`."""
        self._is_quiet = quiet
        self._lock = threading.Lock()
        self._depth = self._num_functions = 0
        self._begun_s = self._last_s = 0.0
        self._teller: threading.Thread | None = None
        self._is_left = threading.Event()
        self._is_unwanted = False

    def begin(self) -> None:
        """Take note that numba begins to compile a function, maybe for another one."""
        if self._is_unwanted:
            self._end_process()
        with self._lock:
            self._depth += 1
            if self._teller is None and not self._is_quiet:
                self._begun_s, self._num_functions = time.monotonic(), 0
                print(COMPILING, file=sys.stderr, flush=True)
                self._teller = threading.Thread(target=self._tell, daemon=True)
                self._teller.start()

    def end(self) -> None:
        """Take note that a function is compiled."""
        with self._lock:
            self._depth -= 1
            self._num_functions += 1
            self._last_s = time.monotonic()
            if not self._depth and self._teller is not None and sys.stderr.isatty():  # alarms may be printed next
                print(ERASE, end="", file=sys.stderr, flush=True)

    def leave(self) -> None:
        """Say what it came to, if nobody has said it."""
        self._is_left.set()
        if teller := self._teller:
            teller.join()

    def stop(self) -> None:
        """End the process while a function is compiled: now, or when the next one begins; for a handler of signals.

        KeyboardInterrupt would get lost: LLVM calls Python back, and ctypes drops what such a call raises. Whatever is
        compiled is in files by now that appear when they are complete.
        """
        self._is_unwanted = True
        if self._depth:
            self._end_process()

    def _end_process(self) -> NoReturn:
        before = ERASE if sys.stderr.isatty() else ""
        os.write(sys.stderr.fileno(), f"{before}{STOPPED}\n".encode())  # print may be what was interrupted
        sys.stdout.flush()
        os._exit(EXIT_STOPPED)

    def _tell(self) -> None:
        told_s = self._begun_s
        while True:
            is_left = self._is_left.wait(REDRAWN_S)
            with self._lock:
                now = time.monotonic()
                is_over = is_left or (not self._depth and now >= self._last_s + OVER_S)
                functions = counted(self._num_functions, "function")
                if is_over:
                    self._teller = None
                    print(f"compiled {functions} in {self._last_s - self._begun_s:.0f} s", file=sys.stderr, flush=True)
                    return
                is_terminal = sys.stderr.isatty()
                if self._depth and (is_terminal or now >= told_s + TOLD_S):
                    told_s = now
                    before, after = (ERASE, "") if is_terminal else ("", "\n")
                    told = f"{before}still compiling: {now - self._begun_s:.0f} s, {functions}"
                    print(told, end=after, file=sys.stderr, flush=True)


@contextmanager
def compilation_told(*, quiet: bool) -> Iterator[Compilation]:
    """Say on standard error when numba compiles within the context, instead of reading its cache, and for how long.

    Ctrl-C meanwhile ends the process; whoever has a handler of its own within calls `stop`.
    numba is imported here: enter this only where it is needed anyway.
    """
    from numba.core import event as events

    compilation = Compilation(quiet=quiet)

    class Teller(events.Listener):
        def on_start(self, event: events.Event) -> None:
            compilation.begin()

        def on_end(self, event: events.Event) -> None:
            compilation.end()

    before = signal.getsignal(signal.SIGINT)

    def stop(number: int, frame: FrameType | None) -> None:
        compilation.stop()
        if callable(before):
            before(number, frame)

    has_handler = callable(before)  # not where a shell lets a background command ignore Ctrl-C
    with events.install_listener("numba:compile", Teller()):
        if has_handler:
            signal.signal(signal.SIGINT, stop)
        try:
            yield compilation
        finally:
            if has_handler:
                signal.signal(signal.SIGINT, before)
            compilation.leave()


def main() -> None:
    """Compile what `kdgat detect`, `profile` and `lap solve` need for usual input, unless that is kept already."""
    import numpy as np

    with compilation_told(quiet=False), tempfile.TemporaryDirectory() as folder:
        from scipy.sparse import eye_array

        from kdgat.assignment import solve
        from kdgat.assignment.entries import solve_entries
        from kdgat.can.detection.loading import load_detector
        from kdgat.can.detection.watch import Watch
        from kdgat.canbus import make_vehicle, simulate, stream_recording
        from kdgat.canbus.look import Look
        from kdgat.canbus.profile import learn_profile

        log = Path(folder, "drive.log")
        messages = simulate(make_vehicle(5), 3.0)
        columns = (messages.timestamp, messages.identifier, messages.payload, messages.length)
        rows = (f"({t:.6f}) can0 {i:03X}#{bytes(p[:n]).hex()}\n" for t, i, p, n in zip(*columns, strict=True))
        log.write_text("".join(rows), encoding="ascii")
        table = log.with_suffix(".csv")
        lines = (f"{t:.6f},{i:03X},{bytes(p[:n]).hex()}\n" for t, i, p, n in zip(*columns, strict=True))
        table.write_text("time,id,data\n" + "".join(lines), encoding="ascii")
        for recording in (log, table):
            with stream_recording(recording) as stream:
                list(Watch(load_detector(None)).run(Look(with_habits=False).watched(stream)))
        learn_profile([("drive", messages)])
        random = np.random.default_rng(0)
        for cost in (random.random((40, 40)), np.where(random.random((200, 200)) < 0.05, 0.5, 1.0)):
            solve(cost)
        for method in ("core", "dense"):
            solve(random.random((40, 50)), method=method)
        solve_entries(eye_array(300))


if __name__ == "__main__":
    main()
