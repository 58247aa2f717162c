"""The peak memory of a process, as the kernel counts it."""

import re
from pathlib import Path
from typing import Final

_PEAK: Final = re.compile(r"^VmHWM:\s*(\d+) kB", flags=re.MULTILINE)


def peak_kib(pid: int | str = "self") -> int | None:
    """Return the most memory of a process that was resident at a time, in KiB; None where a sandbox does not say it.

    Not `ru_maxrss`: a process inherits that from the one that started it, across exec.

    Raises:
        OSError: if the process has ended, or this is no Linux.
    """
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else None
