"""`python -m kdgat.training.ranks.rank FOLDER`: be one rank of several of a fit, for the stage that started this."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kdgat.stage import FailureKind, RunDirectory
from kdgat.stage.outcome import EXIT_FAILED, EXIT_FINISHED
from kdgat.stage.process import leave, signal_on_parent_death
from kdgat.stage.runner import describe_exception, failure_kind, find_stage_function
from kdgat.stage.signals import StopFlag, stop_signals
from kdgat.training.ranks.end import LOST, note_end
from kdgat.training.ranks.group import FitOver, RankLostError, Seat, take_seat
from kdgat.training.ranks.processes import rank_path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stage of the mirrored directory up to the end of the fit; return the exit status: 0 or 1."""
    parser = argparse.ArgumentParser(prog="python -m kdgat.training.ranks.rank", description="Be a rank of a fit.")
    parser.add_argument("folder", type=Path, help="where the ranks meet")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--fit", required=True, help="its name")
    parser.add_argument("--parent", type=int, required=True, help="process without which this one is of no use")
    parsed = parser.parse_args(arguments)
    # Nothing is lost by a kill: what a rank knows, the others know, too.
    if not signal_on_parent_death(signal.SIGKILL, parsed.parent):
        return EXIT_FAILED
    seat = Seat(parsed.rank, parsed.count, parsed.fit, parsed.folder)
    take_seat(seat)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A signal waits until the fit: there all ranks leave together, and before it rank 0 says who leaves.
    with stop_signals() as stop:
        return _run(seat, stop)


def _run(seat: Seat, stop: StopFlag) -> int:
    directory = RunDirectory(rank_path(seat.folder, seat.rank))
    directory.quiet = True
    spec = directory.read_spec()
    try:
        find_stage_function(spec.family)(spec, directory)
    except FitOver:
        return EXIT_FINISHED
    except RankLostError as error:
        kind, evidence = LOST, str(error)
    except Exception as error:
        kind, evidence = failure_kind(error), describe_exception(error)
    else:  # as a stage does that is asked to leave between two fits
        kind = FailureKind.ENVIRONMENT if stop else FailureKind.ERROR
        signal_name = f", after {stop.signal_name}" if stop else ""
        evidence = f"stage {spec.stage} ended before it came to fit {seat.fit!r}{signal_name}"
    note_end(seat.folder, seat.rank, kind, evidence)
    print(f"rank {seat.rank} (process {os.getpid()}): {kind}: {evidence}", file=sys.stderr)
    return EXIT_FAILED


if __name__ == "__main__":
    leave(main())
