"""What attempts used of what they had asked for, by stage: what `kdgat history` shows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kdgat.cluster.resources import format_walltime
from kdgat.cluster.usage import Usage

MIB_PER_GIB: Final = 1024
HOUR_S: Final = 3600.0
HEADINGS: Final = (
    "stage",
    "device",
    "attempts",
    "runs",
    "walltime",
    "of asked",
    "peak memory",
    "of asked",
    "GiB h unused",
    "GPU busy",
    "in the queue",
)


@dataclass(frozen=True)
class StageEfficiency:
    """Hold medians and sums over the attempts at a stage on one type of device.

    Attributes:
        attempts, runs: how many.
        wall_s: of the attempt in the middle.
        rss_mib: of the attempt that took most; 0 where it is not known.
        walltime_share, memory_share: used by asked, of the attempt in the middle; None where nothing was asked for.
        wasted_gib_hours: memory that was asked for and not used, times the hours that it was held.
        gpu_busy: share of the time in which the GPU computed, of the attempt in the middle; None where nobody knows.
        queue_s: in the queue, of the attempt in the middle.
    """

    family: str
    stage: str
    device: str
    attempts: int
    runs: int
    wall_s: float
    rss_mib: int
    walltime_share: float | None
    memory_share: float | None
    wasted_gib_hours: float
    gpu_busy: float | None
    queue_s: float | None

    def cells(self) -> tuple[str, ...]:
        """Return the texts below `HEADINGS`; empty where nothing was asked for, as on a machine without a scheduler."""
        was_asked = self.walltime_share is not None or self.memory_share is not None
        return (
            f"{self.family} {self.stage}",
            self.device,
            str(self.attempts),
            str(self.runs),
            format_walltime(round(self.wall_s)),
            "" if self.walltime_share is None else f"{self.walltime_share:.0%}",
            f"{self.rss_mib}M" if self.rss_mib else "",
            "" if self.memory_share is None else f"{self.memory_share:.0%}",
            f"{self.wasted_gib_hours:.1f}" if was_asked else "",
            "" if self.gpu_busy is None else f"{self.gpu_busy:.0%}",
            "" if self.queue_s is None else format_walltime(round(self.queue_s)),
        )


def efficiencies(usages: Sequence[Usage], stage: str | None = None) -> list[StageEfficiency]:
    """Summarise attempts by family, stage and device, in the order in which stages first appear."""
    groups: dict[tuple[str, str, str], list[Usage]] = {}
    for one in usages:
        if stage in (None, one.stage):
            groups.setdefault((one.family, one.stage, one.device), []).append(one)
    return [_of_group(*key, group) for key, group in groups.items()]


def _of_group(family: str, stage: str, device: str, group: Sequence[Usage]) -> StageEfficiency:
    asked = [(one, one.asked) for one in group if one.asked is not None]
    walltimes = [one.wall_s / what.walltime_s for one, what in asked]
    memories = [one.rss_mib / what.memory_mib for one, what in asked if one.rss_mib]
    unused = [
        max(what.memory_mib - one.rss_mib, 0) / MIB_PER_GIB * one.wall_s / HOUR_S for one, what in asked if one.rss_mib
    ]
    busy = [one.gpu_busy for one in group if one.gpu_busy is not None]
    waited = [one.queue_s for one, _ in asked]
    return StageEfficiency(
        family,
        stage,
        device,
        attempts=len(group),
        runs=len({one.run for one in group}),
        wall_s=statistics.median(one.wall_s for one in group),
        rss_mib=max(one.rss_mib for one in group),
        walltime_share=statistics.median(walltimes) if walltimes else None,
        memory_share=statistics.median(memories) if memories else None,
        wasted_gib_hours=sum(unused),
        gpu_busy=statistics.median(busy) if busy else None,
        queue_s=statistics.median(waited) if waited else None,
    )
