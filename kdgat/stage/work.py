"""What the process of a stage has done, and how fast: `work.json`, from which estimates of later runs are made.

Nothing is resumed from it. It is written while the stage trains, so that an attempt that is killed leaves it, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

WRITE_INTERVAL_S: Final = 10.0
BYTES: Final = "bytes"  # of all inputs
GRAPHS: Final = "graphs"  # of an epoch


class FitWork(BaseModel):
    """Hold the optimizer steps of one fit: those of this process, those that are left, and the seconds since its first.

    The seconds hold validation and checkpoints, too: a job has to wait for them.
    """

    model_config = ConfigDict(extra="forbid")

    done: int = Field(0, ge=0)
    left: int = Field(0, ge=0)
    seconds: float = Field(0.0, ge=0)


class Work(BaseModel):
    """Hold what one process of a stage did.

    Attributes:
        started: seconds since the epoch; tells the processes of a stage apart.
        startup_s: until the first step: imports, hashes of inputs, stores.
        device: name of the GPU, or cpu.
        size: bytes of all inputs, and graphs of an epoch where the stage trains.
        gpu_mib: the most that tensors took.
        gpu_reserved_mib: the most that torch held for them.
        gpu_free_mib: the least that was seen to be free of the GPU; None where nobody looked.
        gpu_busy: share of the time in which it computed; None where nobody knows.
        loading_s: in which training steps waited for their data.
        staged_s, staged_bytes: what was copied to a fast disk, and how long that took.
        batch_size: what a batch holds at most, by fit, where that was searched for.
        num_ranks: how many processes trained together.
        ranks_mib: the most memory of the other processes that worked together with this one, all of them.
    """

    model_config = ConfigDict(extra="ignore")  # of a younger kdgat, too

    started: float = Field(default_factory=time.time)
    startup_s: float = Field(0.0, ge=0)
    device: str = "cpu"
    precision: str = ""
    threads: int = Field(1, ge=1)
    parameters: int = Field(0, ge=0)
    size: dict[str, int] = Field(default_factory=dict)
    fits: dict[str, FitWork] = Field(default_factory=dict)
    checkpoint_s: float = Field(0.0, ge=0)
    gpu_mib: int = Field(0, ge=0)
    gpu_reserved_mib: int = Field(0, ge=0)
    gpu_free_mib: int | None = Field(None, ge=0)
    gpu_busy: float | None = Field(None, ge=0, le=1)
    loading_s: float = Field(0.0, ge=0)
    staged_s: float = Field(0.0, ge=0)
    staged_bytes: int = Field(0, ge=0)
    batch_size: dict[str, int] = Field(default_factory=dict)
    ranks_mib: int = Field(0, ge=0)
    num_ranks: int = Field(1, ge=1)
    _others: dict[str, int] = PrivateAttr(default_factory=dict)

    @property
    def done(self) -> int:
        """Return the optimizer steps of all fits."""
        return sum(fit.done for fit in self.fits.values())

    @property
    def left(self) -> int:
        """Return the steps that are left of the fits that have begun."""
        return sum(fit.left for fit in self.fits.values())

    @property
    def step_s(self) -> float:
        """Return the seconds per optimizer step; 0 before the first one."""
        return sum(fit.seconds for fit in self.fits.values()) / self.done if self.done else 0.0

    def begin_fit(self, name: str) -> None:
        """Note that a fit begins; what came before the first one was the start of the stage."""
        if not self.fits:
            self.startup_s = max(0.0, time.time() - self.started)
        self.fits[name] = FitWork()

    def note_others(self, kind: str, mib: int) -> None:
        """Note the memory of all processes of one kind beside this one; those of other kinds are there, too."""
        self._others[kind] = max(mib, self._others.get(kind, 0))
        self.ranks_mib = sum(self._others.values())

    def count_inputs(self, paths: Iterable[Path]) -> None:
        """Add up the bytes of the files that the stage reads."""
        self.size[BYTES] = sum(path.stat().st_size for path in paths)


_PEAK: Final = re.compile(r"^VmHWM:\s*(\d+) kB", flags=re.MULTILINE)


def peak_kib(pid: int | str = "self") -> int | None:
    """Return the most memory of a process that was resident at a time, in KiB; None where a sandbox does not say it.

    Not `ru_maxrss`: a process inherits that from the one that started it, across exec.

    Raises:
        OSError: if the process has ended, or this is no Linux.
    """
    found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else None
