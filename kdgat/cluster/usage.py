"""What attempts took beside what they asked for: one line each, in one append-only file per run.

The attempts of a stage stay the truth of that stage (`kdgat.cluster.history`). These lines outlive it: estimates of
later runs are made of them. A file is appended to by the one process that watches its run, and all files of a folder
are read by pattern: no lock, which network filesystems do not keep.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kdgat.stage.files import append_snapshot

PATTERN: Final = "*.jsonl"
VERSION: Final = 1

Size = dict[str, int]
"""What a stage reads: graphs, nodes, edges, messages, instances; as many of them as it has."""


class Asked(BaseModel):
    """What the job asked for."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    walltime_s: int = Field(ge=0)
    memory_mib: int = Field(ge=0)
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
    device: str  # type of GPU, or cpu
    cores: int = Field(1, ge=1)
    precision: str = ""
    parameters: int = Field(0, ge=0)
    size: Size = Field(default_factory=dict)
    units: str = "steps"
    done: int = Field(0, ge=0)  # units in this attempt
    left: int = Field(0, ge=0)  # units at its end
    startup_s: float = Field(0.0, ge=0)
    unit_s: float = Field(0.0, ge=0)
    checkpoint_s: float = Field(0.0, ge=0)
    wall_s: float = Field(0.0, ge=0)
    queue_s: float = Field(0.0, ge=0)
    rss_mib: int = Field(0, ge=0)
    gpu_mib: int = Field(0, ge=0)
    out_of_memory: bool = False  # of the host: `rss_mib` is then a lower bound
    asked: Asked | None = None
    end: str = ""  # the value of an EndKind

    @property
    def need_s(self) -> float:
        """Return what the whole stage would have taken in one attempt."""
        return self.startup_s + (self.done + self.left) * self.unit_s + self.checkpoint_s


def append_usage(path: Path, usage: Usage) -> bool:
    """Append a line; False where it could not be written: no stage ends for want of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return append_snapshot(path, (usage.model_dump_json() + "\n").encode())


def read_usages(folder: Path) -> list[Usage]:
    """Read the lines of all runs, oldest first, without those that were cut short or are of another version."""
    found = []
    for path in sorted(folder.glob(PATTERN)):
        for line in path.read_bytes().splitlines():
            try:
                found.append(Usage.model_validate(_parse(line)))
            except (ValueError, ValidationError):
                continue
    return sorted(found, key=lambda usage: usage.time)


def _parse(line: bytes) -> Any:
    return json.loads(line)


def matching(
    usages: Sequence[Usage], family: str, stage: str, device: str, cores: int, precision: str, most: int = 20
) -> list[Usage]:
    """Return the newest attempts at this stage on such a device, oldest first."""
    key = (family, stage, device, cores, precision)
    same = [one for one in usages if (one.family, one.stage, one.device, one.cores, one.precision) == key]
    return same[-most:]
