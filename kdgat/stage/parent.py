"""A stage must not outlive the process that started it: the kernel tells it when that one dies."""

import ctypes
import os
import signal
import sys

PARENT_PROCESS_VARIABLE = "KDGAT_PARENT_PROCESS"
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def follow_parent_into_death() -> None:
    """Ask for a SIGTERM when the process that started us dies, so that no orphan trains on.

    Only where the parent asked for it by putting its process id into the environment. The signal is the same
    one a cluster sends at walltime: the trainer writes a checkpoint and leaves with status 75.
    """
    parent = os.environ.pop(PARENT_PROCESS_VARIABLE, None)
    if parent is not None and not signal_on_parent_death(signal.SIGTERM, int(parent)):
        os.kill(os.getpid(), signal.SIGTERM)


def signal_on_parent_death(number: signal.Signals, parent: int) -> bool:
    """Ask the kernel (Linux only) to send us a signal when our parent dies; False if it is dead already."""
    if not sys.platform.startswith("linux"):
        return True
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent  # looked at afterwards: it may have died before the kernel knew
