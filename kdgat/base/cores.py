"""The processor cores that a process may use, and libraries that wait for each other on them without spinning."""

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

from kdgat.base.cgroups import groups_of

WAIT_VARIABLE: Final = "OMP_WAIT_POLICY"
CONTROLLER: Final = "cpu"


def num_usable_cores() -> int:
    """Return how many cores this process may use: those it may run on, and no more than its container may fill."""
    may_run_on = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return max(1, min(may_run_on, *(int(share) for share in _quotas())))  # of 1.5 cores one is sure


def _quotas() -> Iterator[float]:
    """Yield infinity, and the processor time per time that each control group above this process allows."""
    yield float(1 << 30)
    for folder in groups_of(CONTROLLER):
        yield from _quota(folder)


def _quota(folder: Path) -> Iterator[float]:
    try:
        if (both := folder / "cpu.max").exists():
            quota, period = both.read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        if quota not in ("max", "-1") and int(period) > 0:
            yield int(quota) / int(period)
    except (OSError, ValueError):  # no such controller here, or words of another kernel: nothing is known of a quota
        return


def wait_without_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads of linear algebra sleep while they wait; call it before torch is loaded.

    Those that spin take the core from the process beside them, and from the thread that they wait for: a step on two
    threads beside another process took twenty times as long. Whoever has set the variable has decided.
    """
    environment.setdefault(WAIT_VARIABLE, "PASSIVE")
