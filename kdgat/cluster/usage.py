"""What attempts took beside what they asked for: one line each, in one append-only file per run.

The attempts of a stage stay the truth of that stage (`kdgat.cluster.attempts`). These lines outlive it: estimates of
later runs are made of them. A file is appended to by the one process that watches its run, and all files of a folder
are read by pattern: no lock, which network filesystems do not keep.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from kdgat.base import UserError
from kdgat.base.files import append_snapshot, make_folder
from kdgat.base.kept import read_kept
from kdgat.base.lines import whole_objects
from kdgat.cluster.attempts import AttemptRecord
from kdgat.cluster.ending import EndKind
from kdgat.cluster.resources import format_memory, format_walltime
from kdgat.cluster.site import Site
from kdgat.stage import FailureKind, RunDirectory, StageSpec, Work

PATTERN: Final = "*.jsonl"
FOLDER: Final = "history"  # beside the output directories of the runs
RUNS: Final = "runs"  # where the documentation has output directories
CPU: Final = "cpu"  # the device where there is no GPU
STEPS: Final = "steps"  # of the optimizer
WHOLE: Final = "stages"  # a stage that trains nothing is one unit of work
VERSION: Final = 1
MIB_PER_GIB: Final = 1024
HOUR_S: Final = 3600.0

Size = dict[str, int]
"""What a stage reads: graphs, nodes, edges, messages, instances; as many of them as it has."""


class Asked(BaseModel):
    """What the job asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    walltime_s: int = Field(gt=0)
    memory_mib: int = Field(gt=0)
    cores: int = Field(ge=1)
    gpus: int = Field(0, ge=0)


class Usage(BaseModel):
    """One attempt: what it did, what it took, what it had asked for; 0 where a number is not known."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # of a younger kdgat, too

    v: Literal[1] = VERSION
    time: float  # when it ended, seconds since the epoch
    run: str  # the same for all attempts of a run at one stage
    family: str
    stage: str
    config: str = ""  # digest of the stage's configuration
    device: str  # name of the GPU, or cpu
    cores: int = Field(1, ge=1)
    precision: str = ""
    parameters: int = Field(0, ge=0)
    size: Size = Field(default_factory=dict)
    epochs: int = Field(0, ge=0)  # at most, of all fits, as the configuration says
    units: str = STEPS
    done: int = Field(0, ge=0)  # units in this attempt
    left: int = Field(0, ge=0)  # units at its end
    startup_s: float = Field(0.0, ge=0)
    unit_s: float = Field(0.0, ge=0)
    checkpoint_s: float = Field(0.0, ge=0)
    wall_s: float = Field(0.0, ge=0)
    queue_s: float = Field(0.0, ge=0)
    rss_mib: int = Field(0, ge=0)
    gpu_mib: int = Field(0, ge=0)
    gpu_reserved_mib: int = Field(0, ge=0)
    gpu_free_mib: int | None = Field(None, ge=0)  # the least that was seen
    gpu_busy: float | None = Field(None, ge=0, le=1)  # share of the time
    loading_s: float = Field(0.0, ge=0)  # of training steps
    batch_size: dict[str, int] = Field(default_factory=dict)  # by fit, where it was searched for
    num_ranks: int = Field(1, ge=1)  # processes that trained together
    staged_s: float = Field(0.0, ge=0)  # part of the start
    staged_bytes: int = Field(0, ge=0)
    out_of_memory: bool = False  # of the host: `rss_mib` is then a lower bound
    asked: Asked | None = None
    end: str = ""  # the value of an EndKind

    @property
    def gpus(self) -> int:
        """Return on how many GPUs it computed: on all that it was given, if on any."""
        return 0 if self.device == CPU else max(self.num_ranks, self.asked.gpus if self.asked is not None else 1)

    @property
    def loading_share(self) -> float:
        """Return the share of the training steps' time in which they waited for their data."""
        steps_s = self.done * self.unit_s if self.units == STEPS else 0.0
        return min(self.loading_s / steps_s, 1.0) if steps_s else 0.0

    def describe(self) -> str:
        """Write in one line what it took of what it had asked for, in per cent, and how long it waited."""
        if self.asked is None:
            return f"{format_walltime(round(self.wall_s))}, {format_memory(self.rss_mib)}"
        asked, wall = self.asked, format_walltime(round(self.wall_s))
        parts = [f"{wall} of {format_walltime(asked.walltime_s)} ({self.wall_s / asked.walltime_s:.0%})"]
        if self.rss_mib:
            share = self.rss_mib / asked.memory_mib
            parts.append(f"{format_memory(self.rss_mib)} of {format_memory(asked.memory_mib)} ({share:.0%})")
        if self.gpu_mib:
            parts.append(f"{format_memory(self.gpu_mib)} of GPU memory")
        if self.gpu_busy is not None:
            parts.append(f"GPU busy {self.gpu_busy:.0%}")
        return ", ".join(parts) + f"; waited {format_walltime(round(self.queue_s))} in the queue"


def usage_path(site: Site, output: Path) -> Path:
    """Return the file of a run: in the site's `history`, by default in `history` beside the output directory."""
    folder = Path(site.history).expanduser() if site.history else output.parent / FOLDER
    digest = hashlib.sha256(str(output.absolute()).encode()).hexdigest()[:8]
    return folder / f"{output.name}-{digest}.jsonl"


def find_history(place: Path | None, site: Site | None) -> Path:
    """Return the folder with the lines of runs: the site's, that of the runs in `place`, or `place` itself.

    Raises:
        UserError: if there is none.
    """
    if place is None and site is not None and site.history:
        folder = Path(site.history).expanduser()
    else:
        folder = place or Path(RUNS)
        folder = folder / FOLDER if (folder / FOLDER).is_dir() else folder
    if not any(folder.glob(PATTERN)):
        raise UserError(
            f"{folder} holds no history of attempts ({PATTERN}): give the folder in which output directories of "
            f"`kdgat train` lie; what runs take is noted from the first attempt on, in its {FOLDER}/"
        )
    return folder


def config_digest(config: Mapping[str, Any]) -> str:
    """Return eight digits that tell configurations of a stage apart."""
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:8]


def planned_epochs(config: Mapping[str, Any]) -> int:
    """Return how many epochs a stage trains at most, in all its fits; 0 where it trains none."""
    fits: Sequence[Mapping[str, Any]] = config.get("fits") or [config]
    return sum(int(fit.get("training", {}).get("max_epochs", 0)) for fit in fits)


def run_name(path: Path, directory: RunDirectory) -> str:
    """Name a stage of a run: the same for all attempts at it, in the file of the run at `path`."""
    return f"{path.stem}/{directory.path.name}"


def usage_of(record: AttemptRecord, work: Work, spec: StageSpec, run: str) -> Usage:
    """Describe an attempt that has ended, by its record and what the stage's own process did in it.

    `run` is the same for all attempts at this stage in this run.
    """
    wall_s = max(record.ended - record.started, 0.0) if record.started else 0.0
    is_finished = record.end == EndKind.FINISHED
    # Of a stage that was cut, nobody knows how much of it is done.
    whole = {"units": WHOLE, "done": int(is_finished), "unit_s": max(wall_s - work.startup_s, 0.0) * is_finished}
    steps = {"units": STEPS, "done": work.done, "left": work.left, "unit_s": work.step_s}
    asked = record.resources
    same = Usage.model_fields.keys() & Work.model_fields.keys()  # what the process itself knows, by the same names
    return Usage(
        **{name: getattr(work, name) for name in same},
        time=record.ended,
        run=run,
        family=spec.family,
        stage=spec.stage,
        config=config_digest(spec.config),
        cores=asked.cores if asked is not None else work.threads,
        epochs=planned_epochs(spec.config),
        **(steps if work.fits else whole),
        wall_s=wall_s,
        queue_s=max((record.started or record.ended) - record.submitted, 0.0) if record.submitted else 0.0,
        rss_mib=record.peak_memory_mib + work.ranks_mib if record.peak_memory_mib else 0,
        out_of_memory=record.end == EndKind.HOST_OOM or record.failure == FailureKind.HOST_OOM,
        asked=Asked.model_validate(asked.model_dump()) if asked is not None else None,
        end=record.end,
    )


def append_usage(path: Path, usage: Usage) -> bool:
    """Append a line; False where it could not be written: no stage ends for want of it."""
    return make_folder(path.parent) and append_snapshot(path, (usage.model_dump_json() + "\n").encode())


def read_usages(folder: Path) -> list[Usage]:
    """Read the lines of all runs, oldest first, without those that were cut short or are of another version."""
    found = []
    for path in sorted(folder.glob(PATTERN)):
        lines = path.read_bytes().splitlines()
        for one in chain.from_iterable(whole_objects(line, "v") for line in lines):
            with suppress(UserError):
                found.append(read_kept(Usage, one, path, "it is left out", key="v"))
    return sorted(found, key=lambda usage: usage.time)


def efficiencies(usages: Sequence[Usage]) -> list[dict[str, Any]]:
    """Summarise attempts by family, stage and device, in the order in which these first appear.

    Numbers are those of the attempt in the middle, but the memory, which is of the one that took most; shares are used
    by asked; None stands where nobody knows, or nothing was asked for. `wasted_gib_hours` is memory that was asked for
    and not used, times the hours that it was held.
    """
    groups: dict[tuple[str, str, str], list[Usage]] = {}
    for one in usages:
        groups.setdefault((one.family, one.stage, one.device), []).append(one)
    return [
        {"family": family, "stage": stage, "device": device, **_efficiency(group)}
        for (family, stage, device), group in groups.items()
    ]


def _efficiency(group: Sequence[Usage]) -> dict[str, Any]:
    asked = [(one, one.asked) for one in group if one.asked is not None]
    measured = [(one, what) for one, what in asked if one.rss_mib]
    unused = [max(what.memory_mib - one.rss_mib, 0) / MIB_PER_GIB * one.wall_s / HOUR_S for one, what in measured]
    return {
        "attempts": len(group),
        "runs": len({one.run for one in group}),
        "wall_s": _middle([one.wall_s for one in group]),
        "rss_mib": max(one.rss_mib for one in group),
        "walltime_share": _middle([one.wall_s / what.walltime_s for one, what in asked]),
        "memory_share": _middle([one.rss_mib / what.memory_mib for one, what in measured]),
        "wasted_gib_hours": sum(unused),
        "gpu_busy": _middle([one.gpu_busy for one in group if one.gpu_busy is not None]),
        "queue_s": _middle([one.queue_s for one, _ in asked]),
    }


def _middle(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
