"""`python -m kdgat.training.loggers.follow DIR LOGGER...`: hand the rows of `metrics.jsonl` on to loggers.

Training starts this process beside itself, and says at the end, through its standard input, how it ended. Where that
is closed without a word, or nobody is left to close it, the next attempt sends what is missing.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from kdgat.stage import RunDirectory
from kdgat.stage.log import stage_log
from kdgat.stage.outcome import EXIT_FAILED, EXIT_FINISHED
from kdgat.stage.process import leave, signal_on_parent_death
from kdgat.stage.signals import stop_signals
from kdgat.training.loggers.beside import End

if TYPE_CHECKING:
    from kdgat.training.loggers.copies import Copy

LOOK_S: Final = 1.0  # between two looks at metrics.jsonl
# What their libraries do unless told otherwise: try for minutes, and report to their makers.
ENVIRONMENT: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "DO_NOT_TRACK": "1",
}


def feed(copies: Sequence[Copy], descriptor: int) -> None:
    """Send rows as they come, until a word says how training ended, or nobody is left to say it."""
    end: End | None = None
    while end is None:
        if select.select([descriptor], [], [], LOOK_S)[0]:
            if not (word := os.read(descriptor, 100)):
                return
            end = cast(End, word.decode())
        # One that may take its time before it fails again keeps no other waiting.
        for copy in sorted(copies, key=lambda copy: copy.fails):
            copy.update(end)


def main(arguments: Sequence[str] | None = None) -> int:
    """Feed the loggers of a fit; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kdgat.training.loggers.follow", description="Feed loggers.")
    parser.add_argument("directory", type=Path, help="run directory of the stage")
    parser.add_argument("loggers", nargs="+", help="their names")
    parser.add_argument("--fit", required=True, help="its name")
    parser.add_argument("--parent", type=int, required=True, help="process without which this one is of no use")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parsed = parser.parse_args(arguments)
    if not signal_on_parent_death(signal.SIGKILL, parsed.parent):
        return EXIT_FAILED
    with suppress(OSError):  # of Linux: where memory runs out, this process shall end, not training
        Path("/proc/self/oom_score_adj").write_text("1000")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    threading.excepthook = lambda _: None  # of libraries: who hands rows to their threads gets the same error
    directory = RunDirectory(parsed.directory)
    # Signals are for training, which says what follows from them.
    with stop_signals(), stage_log(directory, parsed.quiet):
        from kdgat.training.loggers.copies import Copy  # takes seconds: a signal may come meanwhile
        from kdgat.training.loggers.services import Place

        place = Place(directory, parsed.fit)
        feed([Copy(name, place) for name in parsed.loggers], sys.stdin.fileno())
    return EXIT_FINISHED


if __name__ == "__main__":
    leave(main())
