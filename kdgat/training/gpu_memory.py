"""Too little memory on a GPU: what took it, in the error and as a history of allocations, and what to do about it."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from kdgat.base.files import write_snapshot
from kdgat.stage import RunDirectory
from kdgat.training.config import TrainingConfig

logger = logging.getLogger(__name__)

# Allocations and frees: some twenty steps of a network for CAN, or two of assignment; kilobytes of the host each.
MOST_EVENTS: Final = 20_000
VIEWER: Final = "https://pytorch.org/memory_viz"


@contextmanager
def memory_watched(
    config: TrainingConfig, directory: RunDirectory, name: str, device: torch.device, *, is_first: bool
) -> Iterator[None]:
    """Let an error for want of GPU memory say what took it, and how to get along; record what takes it, if asked to.

    `is_first`: of several ranks the first alone records. The history is written each time that memory runs out, also
    where training then goes on in smaller parts; where it never does, at the end, for whatever reason that comes.
    """
    wanted = config.memory_snapshot and is_first
    if device.type != "cuda":
        if wanted:
            logger.warning("training.memory_snapshot=true changes nothing: there is no GPU")
        yield
        return
    path = directory.path / f"memory_snapshot{name and '-'}{name}.pickle"
    history = _History(path) if wanted else None
    try:
        yield
    except torch.OutOfMemoryError as error:
        error.add_note(describe_shortage(config, device, path if wanted else None))
        raise
    finally:
        if history is not None:
            history.end()


class _History:
    """What is allocated and freed, and by which lines of Python, from now on."""

    def __init__(self, path: Path) -> None:
        self._path, self._is_open, self._ran_out = path, True, False
        torch.cuda.init()  # type: ignore[no-untyped-call]  # before it an observer crashes the process
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=MOST_EVENTS, clear_history=True
        )
        # Before the failed step is undone; an observer stays for as long as its process.
        torch._C._cuda_attach_out_of_memory_observer(self._on_shortage)  # type: ignore[attr-defined]

    def end(self) -> None:
        """Record no more."""
        self._is_open = False
        if not self._ran_out:
            self._write()
        torch.cuda.memory._record_memory_history(None)

    def _on_shortage(self, device: int, wanted: int, allocated: int, free: int) -> None:
        if self._is_open:
            self._ran_out = True
            self._write()

    def _write(self) -> None:
        write_snapshot(self._path, pickle.dumps(torch.cuda.memory._snapshot()), durable=False)
        logger.info("what takes the GPU's memory is in %s: open it in %s", self._path, VIEWER)


def describe_shortage(config: TrainingConfig, device: torch.device, snapshot: Path | None) -> str:
    """Say who has the memory of the GPU, and what to change."""
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_reserved(device)
    others = max(total - free - held, 0)
    fixes = ["ask for a GPU with more memory (gpu_type), or for one that nobody else uses", "choose a smaller model"]
    if config.precision in ("32-true", "tf32"):
        fixes.append("training.precision=bf16-mixed")
    if config.capture:
        fixes.append("training.capture=false, with which batches are cut until they fit")
    seen = f"{snapshot} shows it in {VIEWER}" if snapshot else "training.memory_snapshot=true shows what takes it"
    return (
        f"Of the GPU's {_gib(total)} tensors took {_gib(torch.cuda.max_memory_allocated(device))} at most, torch holds "
        f"{_gib(held)}, CUDA and other processes {_gib(others)}, and {_gib(free)} are free: "
        f"{', or '.join(fixes)}; {seen}"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
