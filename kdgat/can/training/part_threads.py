"""Parts of a stage side by side: as many at once as the job has cores, each the same bytes as if it were made alone.

Threads, because what takes the time is compiled and lets others run, and all of them read the same recordings.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait

from kdgat.base.files import remove_temporary_files
from kdgat.stage.outcome import Paused
from kdgat.stage.signals import stop_signals
from kdgat.training.deadline import Deadline
from kdgat.training.parts import Parts
from kdgat.training.running_time import RunningTime


class Abandonment:
    """Let the parts that are being made know that the stage ends."""

    def __init__(self) -> None:
        self._is_over = threading.Event()

    def begin(self) -> None:
        """Let every part end where it looks next."""
        self._is_over.set()

    def look(self) -> None:
        """Leave the part that is being made if the stage ends; asked every second or so."""
        if self._is_over.is_set():
            raise CancelledError


def make_missing_side_by_side(
    parts: Parts, deadline: Deadline, abandonment: Abandonment, names: Iterable[str] | None = None, threads: int = 1
) -> Paused | None:
    """Make what is missing, of all parts or of these, some at once; Paused if the job ends before that is done.

    What is being made when a signal comes, or another part fails, is abandoned; no thread is left when this returns.
    Arguments and errors otherwise as of `Parts.make_missing`; of several that fail, the first in their order tells why.
    """
    if threads == 1:
        return parts.make_missing(deadline, names)
    missing = parts.missing()
    for folder in {parts.summary_path(name).parent for name in missing}:
        remove_temporary_files(folder)
    done = parts.total - sum(parts.by_name[name].size for name in missing)
    parts.report(done, parts.total)
    wanted = set(parts.by_name if names is None else names)
    waiting = [name for name in missing if name in wanted]
    running: dict[Future[float], str] = {}
    reason = ""
    with RunningTime().watched() as running_time, ThreadPoolExecutor(threads, "part") as pool:

        def make(name: str) -> float:
            began = running_time()
            parts.make(name)
            return running_time() - began

        try:
            while waiting or running:
                while waiting and len(running) < threads:
                    if deadline.reached():
                        reason, waiting = deadline.describe(), []
                        break
                    name = waiting.pop(0)
                    running[pool.submit(make, name)] = name
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    if future.exception() is not None:
                        raise _first_error(running, abandonment)
                    deadline.observe_step(future.result())
                    done += parts.by_name[running.pop(future)].size
                    parts.report(done, parts.total)
        except BaseException:
            abandonment.begin()
            with stop_signals() as stop, stop.watched():  # a second signal leaves no thread behind
                wait(running)
            raise
    if not reason:
        return None
    reason = f"{reason}; {done} of {parts.total} {parts.unit} are done"
    return Paused(checkpoint=parts.directory.newest_checkpoint(), reason=reason)


def _first_error(running: dict[Future[float], str], abandonment: Abandonment) -> BaseException:
    """Wait for what is being made, and return why the first part in their order failed by itself."""
    abandonment.begin()
    errors = [future.exception() for future in running]
    return next(error for error in errors if error is not None and not isinstance(error, CancelledError))
