"""How far a file may grow when it is read: what comes out of it, and what its process may take for it.

Logs were seen to be compressed 10 to 25 times, and one message again and again, with its times, 32 to 50 times. Reading
takes 230 bytes of memory for a message, of the smallest file of many messages 220 times its size.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Final

from kdgat.base import MIB, describe_bytes
from kdgat.base.memory import available_memory
from kdgat.canbus.messages import RecordingError

MAX_GROWTH: Final = 100
"""Times its size that a file may hold, unpacked."""
LEAST_UNPACKED_BYTES: Final = 64 * MIB
"""What any file may hold, unpacked."""
LEAST_MEMORY: Final = 1024 * MIB  # that reading a file of any size may take
MEMORY_PER_BYTE: Final = 250  # of the file, on top
LEAST_S: Final = 60  # of processor time that a file of any size may take; imports take three of them
BYTES_PER_S: Final = 100_000  # that are read at the very least: a hundredth of what compressed files were seen to take
_MAX_DATA_EXTENTS: Final = 1000  # of a file with holes that are looked at


class Growth:
    """Count what comes out of a file that is unpacked; RecordingError where it is nearly nothing but repetition."""

    def __init__(self, path: Path, num_bytes: int | None = None) -> None:
        """Begin with nothing unpacked; `num_bytes` is the size of what is no file."""
        self._path = path
        self._num_bytes = path.stat().st_size if num_bytes is None else num_bytes
        self._num_unpacked = 0

    @property
    def left(self) -> int:
        """Bytes that may still come out."""
        return most_unpacked(self._num_bytes) - self._num_unpacked

    def add(self, num_bytes: int) -> None:
        """Count bytes that were unpacked."""
        self._num_unpacked += num_bytes
        if self.left < 0:
            raise too_large(self._path, self._num_bytes)

    def take(self, num_bytes: int) -> None:
        """Count bytes that came through a pipe, whose size nobody knows."""
        self._num_bytes += num_bytes


def most_unpacked(num_bytes: int) -> int:
    """Return how many bytes a file of so many may hold."""
    return max(LEAST_UNPACKED_BYTES, MAX_GROWTH * num_bytes)


def too_large(path: Path, num_bytes: int | None = None) -> RecordingError:
    """Return the error of a file that holds more than any log of its size does."""
    size = path.stat().st_size if num_bytes is None else num_bytes
    return RecordingError(
        path,
        f"holds more than {describe_bytes(most_unpacked(size))}, unpacked, in {size:,} bytes, and no log is compressed "
        f"more than {MAX_GROWTH} times: export it again, or give it uncompressed",
    )


def refuse_holes(path: Path) -> None:
    """Refuse a file that is long and nearly empty, as one whose copy was cut off; RecordingError.

    A file system that knows of no holes says that all of it is data.
    """
    size = path.stat().st_size
    if size <= LEAST_UNPACKED_BYTES:
        return
    num_bytes = place = 0
    with path.open("rb") as file:
        for _ in range(_MAX_DATA_EXTENTS):
            try:
                begin = os.lseek(file.fileno(), place, os.SEEK_DATA)
                place = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            except OSError:  # nothing but a hole is left, or nobody can tell
                break
            num_bytes += place - begin
        else:
            return
    if size > most_unpacked(num_bytes) and place < size:
        raise RecordingError(
            path,
            f"is {describe_bytes(size)} long, and no more than {describe_bytes(num_bytes)} of it were ever written; "
            "copy it again",
        )


def most_memory(num_bytes: int) -> int:
    """Return how many bytes of memory reading a file of so many may take: of what is available no more than half."""
    return min(LEAST_MEMORY + MEMORY_PER_BYTE * num_bytes, available_memory() // 2)


def most_time(num_bytes: int, least_s: int = LEAST_S) -> int:
    """Return how many seconds of processor time reading a file of so many bytes may take."""
    return least_s + num_bytes // BYTES_PER_S


def limit_process(num_bytes: int, time_s: int) -> str:
    """Give this process memory and processor time for one file of so many bytes, and say how much.

    What it has is not counted. Beyond the memory an allocation fails, beyond the time it ends by SIGXCPU.
    """
    memory = most_memory(num_bytes)
    status = Path("/proc/self/status").read_text()
    has = int(status.partition("VmData:")[2].split()[0]) * 1024
    # Data, and not the address space: files that are mapped, and what threads reserve, are no memory.
    for kind, most in ((resource.RLIMIT_DATA, has + memory), (resource.RLIMIT_CPU, int(time.process_time()) + time_s)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    return f"{describe_bytes(memory)} of memory and {time_s} s of processor time"
