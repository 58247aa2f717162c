"""`python -m tests.fuzz --examples 100000 --seed 1`: the large number, each target in processes of its own.

A process that crashes, hangs or fails names the input; the same seed draws the same inputs again. The last input of a
process that died is in `input.txt` of the folder that is named.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

HANG_S = 300.0  # kernels may have to be compiled first
PER_PROCESS = 2500
"""Inputs of one process: libraries that were fed damaged files for long may keep what they took."""
SHOWN_LINES = 60


def main() -> int:
    """Fuzz all targets, or those that are named; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000, help="inputs of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", action="append", choices=[target.name for target in TARGETS], help="this one alone")
    chosen_words = parser.parse_args()
    chosen = [target for target in TARGETS if chosen_words.target is None or target.name in chosen_words.target]
    gc.freeze()
    total, began, failed = 0, time.monotonic(), []
    shares = sum(target.share for target in chosen)
    for target in chosen:
        wanted = max(1, round(chosen_words.examples * target.share / shares))
        count, is_good, started = 0, True, time.monotonic()
        for place, first in enumerate(range(0, wanted, PER_PROCESS)):
            own_seed = chosen_words.seed * 1000 + place
            done, is_good = _fuzz_apart(target, min(PER_PROCESS, wanted - first), own_seed)
            count += done
            if not is_good:
                failed.append(target.name)
                break
        total += count
        seeds = f"seeds {chosen_words.seed * 1000} to {own_seed}" if place else f"seed {own_seed}"
        ending = "ok" if is_good else "FAILED"
        print(f"{target.name}: {count} inputs, {seeds}, {time.monotonic() - started:.0f} s, {ending}", flush=True)
    took_s = time.monotonic() - began
    print(
        f"{total} inputs of {len(chosen)} targets, seed {chosen_words.seed}, {took_s:.0f} s; failed: {failed or 'none'}"
    )
    return 1 if failed else 0


def _fuzz_apart(target: Target, examples: int, own_seed: int) -> tuple[int, bool]:
    """Fuzz in a process of its own; return how many inputs it tried, and whether all was well."""
    folder = Path(tempfile.mkdtemp(prefix=f"kdgat-fuzz-{target.name}-"))
    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(target=_fuzz_here, args=(target, examples, own_seed, folder))
    process.start()  # forked: what all targets import takes longer than thousands of inputs
    process.join()
    counted = folder / "count.txt"
    count = int(counted.read_text()) if counted.is_file() else 0
    if process.exitcode == 0:
        shutil.rmtree(folder)
        return count, True
    print(f"{target.name}: exit status {process.exitcode}, seed {own_seed}, last input in {folder}")
    print("\n".join((folder / "log.txt").read_text(errors="replace").splitlines()[-SHOWN_LINES:]), flush=True)
    return count, False


def _fuzz_here(target: Target, examples: int, own_seed: int, folder: Path) -> None:
    with (folder / "log.txt").open("w") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
    faulthandler.enable()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)  # what is left there is found
    os.environ.update(KDGAT_SERVER_START_TIMEOUT_S="0", NO_COLOR="1")
    fuzz(target, examples, own_seed, folder, hang_s=HANG_S)


def fuzz(target: Target, examples: int, own_seed: int | None, folder: Path, hang_s: float | None = None) -> int:
    """Try inputs of one target, and raise what it fails with; return how many were tried.

    Args:
        target: what is fuzzed.
        examples: how many inputs; fewer where there are no more.
        own_seed: of the inputs; None: as the profile of hypothesis says.
        folder: gets the last input, and a folder for each example in turn.
        hang_s: ends the process where one input takes longer.
    """
    place, last, count, watched_until = folder / "example", folder / "input.txt", 0, 0.0

    def check(value: Any) -> None:
        nonlocal count
        count += 1
        nonlocal watched_until
        if hang_s is not None:
            (folder / "count.txt").write_text(str(count))
            if time.monotonic() > watched_until:  # a thread each: not for every example
                watched_until = time.monotonic() + hang_s / 20.0
                faulthandler.dump_traceback_later(hang_s, exit=True)
            last.write_text(repr(value), errors="backslashreplace")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        target.check(place, value)

    phases = [Phase.generate] if own_seed is not None else [Phase.explicit, Phase.generate, Phase.shrink]
    tried = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[*phases, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    wrapped = tried(given(target.strategy())(check))
    if own_seed is not None:
        wrapped = seed(own_seed + zlib.crc32(target.name.encode()))(wrapped)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # thousands of warnings are no report
    try:
        wrapped()
    finally:
        logging.disable(disabled)
        faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(place, ignore_errors=True)
    return count


if __name__ == "__main__":
    sys.exit(main())
