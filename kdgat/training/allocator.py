"""Memory that is used again from step to step: how the allocators of the CPU and of CUDA are set.

A step on the CPU allocates the same blocks of ten megabytes and more each time. By default glibc maps such a block
anew, so the kernel zeroes its pages, and hands it back when it is freed. `benchmarks/models.py` prints what it costs.
"""

import ctypes
import os
import sys
from typing import Final

# mallopt(3) of glibc
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30  # blocks up to this size come from memory that the process keeps
MAPPED_BYTES = 1 << 16
ALLOCATOR_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
EXPANDABLE_SEGMENTS: Final = "expandable_segments:True"


def use_expandable_segments() -> None:
    """Let CUDA's allocator grow its segments, so that batches of many sizes leave no gaps; no-op once CUDA is in use.

    Whoever has set one of the allocator's variables has decided.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = EXPANDABLE_SEGMENTS


def keep_freed_memory() -> bool:
    """Let glibc reuse freed blocks of up to a gigabyte; returns False where there is no glibc, and changes nothing.

    The process keeps its peak memory until it ends, which a stage reaches in its first steps anyway.
    """
    return _map_blocks_from(KEPT_BYTES)


def return_freed_memory() -> bool:
    """Let glibc hand freed blocks back at once, so that a process is as large as its tensors; as `keep_freed_memory`.

    For measurements: gaps of the heap otherwise come on top, half as much again or more where sizes vary.
    """
    return _map_blocks_from(MAPPED_BYTES)


def _map_blocks_from(size: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # musl has a mallopt-less allocator of its own
        return False
    return all(libc.mallopt(option, size) == 1 for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD))
