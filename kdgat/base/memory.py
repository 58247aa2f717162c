"""The memory that this machine has left, and files that hold more than that once they are unpacked."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kdgat.base.cgroups import groups_of
from kdgat.base.errors import UserError
from kdgat.base.text import describe_bytes

CONTROLLER: Final = "memory"
# Limit, use, and what of it are pages of files, which are given back, as those that MemAvailable counts.
_V1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
_V2: Final = ("memory.max", "memory.current", ("inactive_file", "active_file"))


def available_memory() -> int:
    """Return how many bytes can be had: of the machine, and of what a job or container is limited to."""
    return min([_of_machine(), *_of_groups()])


def _of_groups() -> Iterator[int]:
    """Yield what each control group above this process has left, with the pages of files that it gives back."""
    for folder in groups_of(CONTROLLER):
        limit, used, given_back = _V2 if (folder / _V2[0]).exists() else _V1
        try:
            stated = (folder / limit).read_text().strip()
            if stated == "max":
                continue
            numbers = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left = (
                int(stated) - int((folder / used).read_text()) + sum(int(numbers.get(name, 0)) for name in given_back)
            )
        except (OSError, ValueError):  # no such controller here, or words of another kernel
            continue
        yield max(left, 0)


def _of_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):  # with the pages that a cache gives back
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(path: Path, num_bytes: int, part: str = "") -> None:
    """Refuse a file, or a part of it, that holds or says it holds more bytes than there is memory for."""
    if num_bytes > (available := available_memory()):
        raise UserError(
            f"{path}: {part or 'it'} holds {describe_bytes(num_bytes)}, unpacked, and this machine has "
            f"{describe_bytes(available)} left: write it in parts, or read it where there is more"
        )
