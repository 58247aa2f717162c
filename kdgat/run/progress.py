"""What a stage's `progress.json` says, as a fraction and in words."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))  # in seconds


def fraction_done(progress: Mapping[str, Any]) -> float:
    """Return how much of a stage is done, 0 to 1."""
    if progress.get("total"):
        return min(1.0, float(progress.get("done", 0)) / float(progress["total"]))
    step = float(progress.get("step", 0)) / max(1.0, float(progress.get("num_steps", 1)))
    if progress.get("phase") == "validation":
        step = 1.0  # its steps come after all of the epoch's training
    epoch, max_epochs = float(progress.get("epoch", 0)), max(1.0, float(progress.get("max_epochs", 1)))
    return min(1.0, (epoch + min(1.0, step)) / max_epochs)


def describe_progress(progress: Mapping[str, Any]) -> str:
    """Say in a few words where a stage is, and how long its job still lasts where that is known."""
    parts = [str(progress["phase"])] if progress.get("phase") else []
    if "epoch" in progress:
        parts.append(f"epoch {int(progress['epoch']) + 1}/{progress.get('max_epochs', '?')}")
    elif progress.get("total"):
        parts.append(f"{progress.get('done', 0):,} of {progress['total']:,}")
    if progress.get("loss") is not None:
        parts.append(f"loss {float(progress['loss']):.4g}")
    if progress.get("graphs_per_s"):
        parts.append(f"{float(progress['graphs_per_s']):.0f} graphs/s")
    if progress.get("seconds_to_deadline") is not None:
        parts.append(f"{describe_seconds(progress['seconds_to_deadline'])} to deadline")
    if "gpu_allocated_bytes" in progress:
        parts.append(describe_gpu_memory(progress))
    return ", ".join(parts)


def describe_gpu_memory(progress: Mapping[str, Any]) -> str:
    """State GiB that tensors take, that torch holds for them, and that are free: GPU 1.2 of 2.0 GiB, 20.5 free.

    >>> describe_gpu_memory({"gpu_allocated_bytes": 1 << 30, "gpu_reserved_bytes": 3 << 29, "gpu_free_bytes": 6 << 30})
    'GPU 1.0 of 1.5 GiB, 6.0 free'
    """
    allocated, reserved, free = (progress[f"gpu_{name}_bytes"] / 2**30 for name in ("allocated", "reserved", "free"))
    return f"GPU {allocated:.1f} of {reserved:.1f} GiB, {free:.1f} free"


def describe_seconds(seconds: float) -> str:
    """State how long something lasts, in its two largest units: 45 s, 2 min 5 s, 16 h 3 min, 2 d 4 h."""
    rest = max(0, round(seconds))
    for (unit, size), (smaller, smaller_size) in pairwise(UNITS):
        if rest >= size:
            return f"{rest // size} {unit} {rest % size // smaller_size} {smaller}"
    return f"{rest} s"
