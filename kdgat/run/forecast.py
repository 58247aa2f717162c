"""How long a run still takes: what its running stages measure, and what attempts before took for those to come."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdgat.base.files import is_gone
from kdgat.cluster.child import read_progress
from kdgat.cluster.forecast import Job, expect_walltime
from kdgat.cluster.usage import FOLDER, read_usages
from kdgat.run.directory import DONE_STATES, OutputDirectory, RunIndex, StageState
from kdgat.run.kept_plan import KeptPlan
from kdgat.run.progress import Remaining
from kdgat.run.table import counted
from kdgat.stage import RunDirectory

FRESH_S: Final = 300.0  # a stage that has written no progress for longer may be one of a process that is gone


@dataclass(frozen=True)
class Forecast:
    """What a run still takes, and how many of its stages that does not count, as nobody knows how long they take.

    Without the first, the second is of all stages that are not done.
    """

    remaining: Remaining | None
    num_unknown: int

    def describe(self) -> str:
        """Write it; empty of a run that is over."""
        stages = counted(self.num_unknown, "stage")
        left = "" if self.remaining is None else self.remaining.describe()
        if not left:
            return f"{stages} left" if self.num_unknown else ""
        return f"{left} left" + (f", {stages} unknown" if self.num_unknown else "")


def forecast(
    output: OutputDirectory,
    index: RunIndex,
    history: Path | None = None,
    *,
    since: Callable[[str], float] | None = None,
) -> Forecast:
    """Estimate what is left of a run that goes on.

    Stages that are to come take the places of those that end, as many at a time as run now; where none waits for a
    place there may be more of them, so that the least is what the longest chain takes. Of jobs nobody knows how long
    they wait.

    Args:
        output, index: the run.
        history: folder of what attempts took; by default beside the output directory.
        since: from when on the progress of a stage counts, by its name: that of an attempt before says nothing.
    """
    to_come = [record for record in index.stages if record.state == StageState.PLANNED]
    running = [record for record in index.stages if record.state == StageState.RUNNING]
    left: dict[str, Remaining | None] = {}
    for record in running:
        progress = (
            {}
            if record.directory is None
            else fresh_progress(
                output.stage_directory(record), time.time() - FRESH_S if since is None else since(record.name)
            )
        )
        left[record.name] = Remaining.of(progress)
    if unknown := [one.name for one in (*running, *to_come) if left.get(one.name) is None]:
        left |= _expected(output, history or output.path.parent / FOLDER, unknown)
    known = [one for one in left.values() if one is not None]
    num_unknown = sum(one is None for one in left.values())
    if not known or any(record.state == StageState.PAUSED for record in index.stages):  # the run stops
        return Forecast(None, sum(record.state not in DONE_STATES for record in index.stages) if left else 0)
    order = [(one.name, one.depends_on) for one in (*running, *to_come)]
    least = {name: 0.0 if one is None else one.low for name, one in left.items()}
    most = {name: 0.0 if one is None else one.high for name, one in left.items()}
    unfinished = {name for name, _ in order}
    is_full = any(not unfinished & set(one.depends_on) for one in to_come)
    low = last_end(order, least, len(running) if is_full else len(order))
    high = last_end(order, most, len(running))
    waits = bool(to_come) and not is_gone(output.slurm_path)
    more = waits or num_unknown > 0 or any(one.more_follows for one in known)
    return Forecast(Remaining(low, high, any(one.may_end_early for one in known), more), num_unknown)


def fresh_progress(directory: RunDirectory, not_before: float) -> dict[str, Any]:
    """Read the progress of a stage; empty where it was written before (seconds since the epoch)."""
    try:
        is_old = directory.progress_path.stat().st_mtime < not_before
    except OSError:
        return {}
    return {} if is_old else read_progress(directory)


def _expected(output: OutputDirectory, history: Path, names: Sequence[str]) -> dict[str, Remaining | None]:
    """Return what stages take from their beginning on, as attempts at stages of their configuration took."""
    found: dict[str, Remaining | None] = dict.fromkeys(names)
    try:
        plan, usages = KeptPlan.read(output), read_usages(history)
    except (OSError, ValueError):  # it is a guess for whoever watches
        return found
    if plan is None:
        return found
    alike: dict[tuple[str, str], Remaining | None] = {}  # by stage and configuration
    for planned in plan.stages:
        if planned.name in found:
            job = Job.of(plan.family, planned.stage, planned.config)
            kind = (job.stage, job.config)
            if kind not in alike:
                known = expect_walltime(usages, job)
                alike[kind] = None if known is None else Remaining(*known)
            found[planned.name] = alike[kind]
    return found


def last_end(order: Sequence[tuple[str, Sequence[str]]], seconds: Mapping[str, float], num_workers: int) -> float:
    """Return when the last stage ends if each begins as soon as a worker is free and what it needs has ended.

    >>> stages = [("a", ()), ("b", ()), ("c", ("a",))]
    >>> last_end(stages, {"a": 1.0, "b": 4.0, "c": 2.0}, 2)
    4.0
    """
    free = [0.0] * max(1, num_workers)
    ends: dict[str, float] = {}
    for name, needs in order:
        began = max([heapq.heappop(free), *(ends.get(need, 0.0) for need in needs)])
        ends[name] = began + seconds[name]
        heapq.heappush(free, ends[name])
    return max(ends.values(), default=0.0)
