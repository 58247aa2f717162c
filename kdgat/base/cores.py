"""The processor cores that a process may use, and libraries that wait for each other on them without spinning."""

import os
from collections.abc import MutableMapping
from typing import Final

WAIT_VARIABLE: Final = "OMP_WAIT_POLICY"


def num_usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def wait_without_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads of linear algebra sleep while they wait; call it before torch is loaded.

    Those that spin take the core from the process beside them, and from the thread that they wait for: a step on two
    threads beside another process took twenty times as long. Whoever has set the variable has decided.
    """
    environment.setdefault(WAIT_VARIABLE, "PASSIVE")
