"""The memory that this machine has left, and files that hold more than that once they are unpacked."""

import os
from pathlib import Path

from kdgat.base.errors import UserError
from kdgat.base.text import describe_bytes


def available_memory() -> int:
    """Return how many bytes can be had without driving out what others use."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):  # with the pages that a cache gives back
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(path: Path, num_bytes: int) -> None:
    """Refuse a file that holds, or says it holds, more bytes than there is memory for, however small it is."""
    if num_bytes > (available := available_memory()):
        raise UserError(
            f"{path}: holds {describe_bytes(num_bytes)}, unpacked, and this machine has {describe_bytes(available)} "
            "left: write it in parts, or read it where there is more"
        )
