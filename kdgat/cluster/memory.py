"""Whether the kernel killed a process of this job for memory: the job's control group knows."""

import re
from pathlib import Path
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")


def num_oom_kills(own_cgroups: Path = Path("/proc/self/cgroup"), root: Path = CGROUP_ROOT) -> int:
    """Count the processes of this control group that the kernel killed for memory; 0 where nothing counts them.

    Source: the kernel's documentation of `memory.oom_control` (version 1) and `memory.events` (version 2).
    """
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):  # several controllers may be mounted as one, under all their names
            return _count(root / controllers / path.lstrip("/") / "memory.oom_control")
        if controllers == "":
            events = root / path.lstrip("/") / "memory.events"
            if events.is_file():
                return _count(events)
    return 0


def _count(path: Path) -> int:
    try:
        found = re.search(r"^oom_kill (\d+)$", path.read_text(), flags=re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
