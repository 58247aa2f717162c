"""How a rank ended: as the kernel says, and as it wrote down itself for the stage that started it."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from kdgat.base import write_json_atomically
from kdgat.cluster.ending import CRASHES
from kdgat.stage import EnvironmentFaultError, FailureKind

LOST: Final = "LOST"  # how a rank says that it ended because another one had
LAST_LINES: Final = 12


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended: what the kernel says, and what it wrote down itself."""

    rank: int
    pid: int
    status: int  # negative: by this signal
    kind: str = ""  # of `FailureKind`, or LOST
    evidence: str = ""

    def error(self) -> Exception:
        """Return the error that the stage ends with: what a person needs to see, of the class that is treated so."""
        who = f"rank {self.rank} of the fit (process {self.pid})"
        if self.status < 0:
            name = signal.Signals(-self.status).name
            if -self.status in CRASHES:
                return RuntimeError(f"{who} crashed with {name}: {self.evidence or 'it said nothing'}")
            return EnvironmentFaultError(f"{who} was ended by {name}: training goes on from the last checkpoint")
        text = f"{who} ended with status {self.status}: {self.evidence or 'it said nothing'}"
        match self.kind:
            case FailureKind.CUDA_OOM:
                return torch.OutOfMemoryError(text)
            case FailureKind.HOST_OOM:
                return MemoryError(text)
            case FailureKind.NUMERIC:
                return FloatingPointError(text)
            case FailureKind.ENVIRONMENT | "LOST":
                return EnvironmentFaultError(text)
        return RuntimeError(text)


def log_path(folder: Path, rank: int) -> Path:
    """Name the file that has what a rank printed."""
    return folder / f"rank-{rank}.log"


def note_end(folder: Path, rank: int, kind: str, evidence: str) -> None:
    """Write down, as a rank, why it cannot go on."""
    write_json_atomically(_end_path(folder, rank), {"kind": kind, "evidence": evidence})


def describe_end(folder: Path, rank: int, pid: int, status: int) -> RankEnd:
    """Describe how a rank ended: by what it wrote down, else by what it printed last."""
    try:
        noted: dict[str, str] = json.loads(_end_path(folder, rank).read_bytes())
    except (OSError, json.JSONDecodeError):
        lines = log_path(folder, rank).read_text(errors="replace").splitlines()[-LAST_LINES:]
        noted = {"kind": "", "evidence": " | ".join(lines)}
    return RankEnd(rank, pid, status, noted["kind"], noted["evidence"])


def _end_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"
