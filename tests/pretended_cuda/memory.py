"""The memory of a pretended card: what its tensors take, up to a limit, and what torch tells of that.

It is counted by storage, to the byte. Torch's own allocator rounds up, and may find no room in one piece: neither is
here. What it holds for tensors that are gone, it gives back when it is asked to, or before it runs out.
"""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

GIB = 1 << 30


@dataclass(eq=False)
class Memory:
    """Bytes that are taken and held, and those that a card has; `others` have some, as on a card that is shared."""

    total: int = 80 * GIB
    others: int = 16 * GIB
    allocated: int = 0
    reserved: int = 0
    peak: int = 0
    observers: list[Callable[[int, int, int, int], object]] = field(default_factory=list)
    events: list[dict[str, Any]] | None = None  # where they are recorded
    _holders: dict[int, int] = field(default_factory=dict)  # tensors by the address of their storage

    @property
    def free(self) -> int:
        """Return the bytes that nobody holds."""
        return self.total - self.others - self.reserved

    def hold(self, tensor: Tensor, inner: Tensor) -> None:
        """Let a tensor of the device hold the memory of its storage for as long as it is there.

        Raises:
            torch.OutOfMemoryError: as torch's, if there is too little.
        """
        storage = inner.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if not size:
            return
        if address not in self._holders:
            self._allocate(address, size)
        self._holders[address] = self._holders.get(address, 0) + 1
        weakref.finalize(tensor, self._let_go, address, size).atexit = False

    def empty_cache(self) -> None:
        """Give back what no tensor takes."""
        self.reserved = self.allocated

    def reset_peak(self, device: Any = None) -> None:
        """Let the peak be what is taken now."""
        self.peak = self.allocated

    def record(self, enabled: str | None = "all", *, max_entries: int = sys.maxsize, **options: Any) -> None:
        """Record events from now on, or no more."""
        assert options.keys() <= {"context", "stacks", "clear_history"}
        self.events = None if enabled is None else []

    def snapshot(self) -> dict[str, Any]:
        """Return what is taken and what happened, in the form of torch's, without lines of Python."""
        assert self.events is not None, "torch gives a snapshot without events, too; kdgat never wants one"
        segment = {"device": 0, "total_size": self.reserved, "allocated_size": self.allocated, "blocks": []}
        return {"segments": [segment], "device_traces": [list(self.events)]}

    def _allocate(self, address: int, size: int) -> None:
        if self.allocated + size > self.total - self.others:
            self._note("oom", address, size)
            for observer in self.observers:
                observer(0, size, self.reserved, self.free)
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / (1 << 20):.2f} MiB. GPU 0 has a total capacity of "
                f"{self.total / GIB:.2f} GiB of which {self.free / GIB:.2f} GiB is free."
            )
        self.allocated += size
        self.reserved = max(self.reserved, self.allocated)
        self.peak = max(self.peak, self.allocated)
        self._note("alloc", address, size)

    def _let_go(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address]
            self.allocated -= size
            self._note("free_completed", address, size)

    def _note(self, action: str, address: int, size: int) -> None:
        if self.events is not None:
            self.events.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": []})
