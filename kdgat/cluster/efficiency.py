"""What attempts used of what they had asked for, by stage: what `kdgat history` shows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from kdgat.cluster.usage import Usage

MIB_PER_GIB = 1024
HOUR_S = 3600.0


@dataclass(frozen=True)
class StageEfficiency:
    """Hold medians and sums over the attempts at a stage on one type of device.

    Attributes:
        attempts, runs: how many.
        walltime_share, memory_share: used by asked, of the attempt in the middle; None where nothing was asked for.
        wasted_gib_hours: memory that was asked for and not used, times the hours that it was held.
        queue_s: in the queue, of the attempt in the middle.
    """

    family: str
    stage: str
    device: str
    attempts: int
    runs: int
    walltime_share: float | None
    memory_share: float | None
    wasted_gib_hours: float
    queue_s: float | None


def efficiencies(usages: Sequence[Usage], stage: str | None = None) -> list[StageEfficiency]:
    """Summarise attempts by family, stage and device, in the order in which stages first appear."""
    groups: dict[tuple[str, str, str], list[Usage]] = {}
    for one in usages:
        if stage in (None, one.stage):
            groups.setdefault((one.family, one.stage, one.device), []).append(one)
    return [_of_group(*key, group) for key, group in groups.items()]


def _of_group(family: str, stage: str, device: str, group: Sequence[Usage]) -> StageEfficiency:
    asked = [(one, one.asked) for one in group if one.asked is not None]
    walltimes = [one.wall_s / what.walltime_s for one, what in asked if what.walltime_s]
    memories = [one.rss_mib / what.memory_mib for one, what in asked if what.memory_mib and one.rss_mib]
    unused = [
        max(what.memory_mib - one.rss_mib, 0) / MIB_PER_GIB * one.wall_s / HOUR_S for one, what in asked if one.rss_mib
    ]
    waited = [one.queue_s for one, _ in asked]
    return StageEfficiency(
        family,
        stage,
        device,
        attempts=len(group),
        runs=len({one.run for one in group}),
        walltime_share=statistics.median(walltimes) if walltimes else None,
        memory_share=statistics.median(memories) if memories else None,
        wasted_gib_hours=sum(unused),
        queue_s=statistics.median(waited) if waited else None,
    )
