"""The control groups above this process, in which a container or a job is held to its share of a machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


def groups_of(controller: str) -> Iterator[Path]:
    """Yield the folders of the groups of this process, and of those above it, of version 1 and 2."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:  # not Linux, or hidden
        return
    for line in lines:
        _, controllers, inside = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        mount = CGROUPS / controllers if controllers else CGROUPS
        roots = [root for root in (mount, CGROUPS / controller, CGROUPS / "unified") if root.is_dir()]
        for root in roots:
            # In a container the path may be that of the host, which is not there: then its own group is the root.
            group = root / inside.lstrip("/")
            for folder in (group, *group.parents):
                yield folder
                if folder == root:
                    break
