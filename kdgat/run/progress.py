"""What a stage's `progress.json` says, as a fraction and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kdgat.base.text import describe_seconds

MOST: Final = 2.0**63  # larger numbers are none
NUMBERS: Final = (
    "epoch", "max_epochs", "done", "total", "loss", "graphs_per_s", "seconds_to_deadline",
    "epoch_left_s", "jobs_low", "jobs_high",
)  # fmt: skip
LONG_EPOCH_S: Final = 60.0  # of which somebody waits for the end
ROUNDED: Final = ((86400, 3600), (7200, 600), (120, 60), (0, 5))  # from so many seconds on, to so many


@dataclass(frozen=True)
class Remaining:
    """Seconds that something still takes, from the fastest to the slowest that was measured.

    >>> Remaining(700, 850).describe(), Remaining(700, 850, may_end_early=True).describe()
    ('12 to 14 min', 'at most 14 min')
    """

    low: float
    high: float
    may_end_early: bool = False  # by early stopping
    more_follows: bool = False  # of which nothing was measured

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> Remaining | None:
        """Return what a stage says of itself; None where it does not know."""
        low, high = _number(progress, "left_low_s", -1.0), _number(progress, "left_high_s", -1.0)
        flags = (progress.get(key) is True for key in ("may_end_early", "more_follows"))
        return cls(low, high, *flags) if 0.0 <= low <= high else None

    def describe(self) -> str:
        """Write it rounded, as the bound that it is; empty where that says nothing."""
        return self.bounds(*(_rounded(seconds) for seconds in (self.low, self.high))).replace("at least 0 s", "")

    def bounds(self, low: str, high: str) -> str:
        """Write two numbers as what is known of them; where neither bound holds, the larger is as good as any."""
        if self.may_end_early or self.more_follows:
            sure = "at most" if not self.more_follows else "at least" if not self.may_end_early else "about"
            return f"{sure} {low if sure == 'at least' else high}"
        number, _, unit = low.partition(" ")
        is_same = unit == high.partition(" ")[2] and not any(map(str.isdigit, unit))
        return high if low == high else f"{number if is_same else low} to {high}"


def _rounded(seconds: float) -> str:
    unit = next(unit for least, unit in ROUNDED if seconds >= least)
    text = describe_seconds(round(seconds / unit) * unit)
    return text if text == "0 s" else text.removesuffix(" 0 s").removesuffix(" 0 min").removesuffix(" 0 h")


def fraction_done(progress: Mapping[str, Any]) -> float:
    """Return how much of a stage is done, 0 to 1."""
    if (total := _number(progress, "total", 0.0)) > 0:
        return _share(_number(progress, "done", 0.0) / total)
    step = _share(_number(progress, "step", 0.0) / max(1.0, _number(progress, "num_steps", 1.0)))
    if progress.get("phase") == "validation":
        step = 1.0  # its steps come after all of the epoch's training
    return _share((_number(progress, "epoch", 0.0) + step) / max(1.0, _number(progress, "max_epochs", 1.0)))


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def _number(progress: Mapping[str, Any], key: str, default: float) -> float:
    """Return a finite number, or the default: the file is not durable, and may be of another kdgat."""
    value = progress.get(key)
    is_number = isinstance(value, int | float) and abs(value) < MOST
    return float(value) if is_number and value is not None else default


def describe_progress(progress: Mapping[str, Any]) -> str:
    """Say in a few words where a stage is, and how long its job still lasts where that is known."""
    known = {key: _number(progress, key, 0.0) for key in NUMBERS if _number(progress, key, -1.0) != -1.0}
    remaining = Remaining.of(progress)
    parts = []  # what people look for comes first: in a narrow terminal the rest is cut
    if "epoch" in known:
        most = f"{known['max_epochs']:.0f}" if "max_epochs" in known else "?"
        parts.append(f"epoch {known['epoch'] + 1:.0f}/{most}")
    elif known.get("total"):
        parts.append(f"{known.get('done', 0.0):,.0f} of {known['total']:,.0f}")
    if left := "" if remaining is None else remaining.describe():
        parts.append(f"{left} left")
    if progress.get("phase") and progress["phase"] != "train":
        parts.append(str(progress["phase"]))
    if remaining is not None and known.get("epoch_left_s", 0.0) >= LONG_EPOCH_S:
        parts.append(f"{_rounded(known['epoch_left_s'])} of the epoch")
    if "loss" in known:
        parts.append(f"loss {known['loss']:.4g}")
    if known.get("graphs_per_s"):
        parts.append(f"{known['graphs_per_s']:.0f} graphs/s")
    if "seconds_to_deadline" in known:
        fits = _describe_jobs(known, remaining) if remaining is not None else ""
        parts.append(f"{describe_seconds(known['seconds_to_deadline'])} to deadline{fits}")
    if "gpu_allocated_bytes" in progress:
        parts.append(describe_gpu_memory(progress))
    return ", ".join(parts)


def _describe_jobs(known: Mapping[str, float], remaining: Remaining) -> str:
    """Say whether a stage ends in this job, or how many more it takes."""
    low, high = known.get("jobs_low"), known.get("jobs_high")
    if low is None or high is None:
        return ""
    if high == 0:
        return "" if remaining.more_follows else " (the stage fits)"
    counts = (f"{count:.0f} more {'job' if high == 1 else 'jobs'}" for count in (low, high))
    return f" ({remaining.bounds(*counts)})"


def describe_gpu_memory(progress: Mapping[str, Any]) -> str:
    """State GiB that tensors take, that torch holds for them, that they took at most, and that are free.

    >>> describe_gpu_memory({"gpu_allocated_bytes": 1 << 30, "gpu_reserved_bytes": 3 << 29, "gpu_free_bytes": 6 << 30})
    'GPU 1.0 of 1.5 GiB, 6.0 free'
    """
    allocated, reserved, peak, free = (
        _number(progress, f"gpu_{name}_bytes", 0.0) / 2**30 for name in ("allocated", "reserved", "peak", "free")
    )
    most = f", at most {peak:.1f}" if peak else ""  # of an older kdgat there is none
    return f"GPU {allocated:.1f} of {reserved:.1f} GiB{most}, {free:.1f} free"
