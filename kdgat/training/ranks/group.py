"""Several processes at one fit, which are called its ranks: what they say to each other, and who is which.

All hold the same weights and the same plan. Each takes its share of a batch; the sum of the gradients is the gradient
of the whole batch, and every rank does the same optimizer step with it. Everything goes through gloo, which works on
the processor: it notices at once that another process is gone, and there is nothing that a dead one leaves hanging on
a GPU. A model of millions of parameters is some megabytes, a few milliseconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
import torch.distributed as distributed
from numpy.typing import NDArray
from torch import Tensor, nn

from kdgat.stage import EnvironmentFaultError
from kdgat.training import seed_everything
from kdgat.training.batch_size import cut

T = TypeVar("T")

# Whoever waits is told by a closed connection that there is nothing to wait for. A rank that validates, or writes to a
# filesystem that stands still, may take its time.
PATIENCE: Final = timedelta(days=30)
INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
# Nobody outside of this machine shall reach the connections, and it is there whatever the machine's name resolves to.
LOOPBACK: Final = "lo" if sys.platform.startswith("linux") else "lo0"
STORE_FILE: Final = "store"


class RankLostError(EnvironmentFaultError):
    """The connection to another rank is gone."""


class FitOver(BaseException):
    """The fit that this process is a rank of is over: the rest of the stage is for rank 0."""


@dataclass(frozen=True)
class Seat:
    """What a process is to a fit that has several: it was started as this rank of so many."""

    rank: int
    count: int
    fit: str  # its name
    folder: Path  # where the ranks meet

    def announce(self) -> None:
        """Say that this rank is there, and that the others can connect to it now."""
        self.ready_path(self.rank).touch()

    def ready_path(self, rank: int) -> Path:
        """Name the file that is there once a rank is."""
        return self.folder / f"rank-{rank}.ready"


_seat: Seat | None = None


def take_seat(seat: Seat | None) -> None:
    """Make this process a rank of the fit that the seat names, from now on; None: of none."""
    global _seat
    _seat = seat


def seat_at(fit: str) -> Seat | None:
    """Return the seat of this process at a fit; None if it has none there."""
    return _seat if _seat is not None and _seat.fit == fit else None


def is_seated() -> bool:
    """Return whether this process was started as a rank of some fit."""
    return _seat is not None


class Ranks:
    """One process alone: it has the whole of each batch, and agrees with itself.

    >>> Ranks().worst(1), Ranks().gather("mean"), Ranks().parts(np.arange(4), 2)
    (1, ['mean'], [array([0, 1]), array([2, 3])])
    """

    rank = 0
    count = 1

    def parts(self, indices: NDArray[np.int64], num_parts: int) -> list[NDArray[np.int64]]:
        """Cut the share of this rank so that the whole batch has `num_parts` parts; none of them is empty."""
        return cut(indices, num_parts)

    def own_parts(self, num_parts: int) -> int:
        """Return how many of a batch's parts are one rank's."""
        return -(-num_parts // self.count)

    def seed_step(self, seed: int, epoch: int, step: int) -> None:
        """Choose the random numbers of a step: one process goes on with those that it has."""

    def worst(self, value: int) -> int:
        """Return the largest of the ranks' numbers."""
        return value

    def meet(self, value: int, parameters: Sequence[nn.Parameter]) -> int:
        """Return the largest of the ranks' numbers; a gradient that only others have is zero here."""
        return value

    def sum_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Add up the gradients of all ranks, in place, and return the sum of their losses."""
        return loss

    def copy_buffers(self, module: nn.Module) -> None:
        """Take over the buffers of rank 0, as the running statistics of a normalisation."""

    def gather(self, value: T) -> list[T]:
        """Return what each rank has, in their order."""
        return [value]

    def first(self, value: T) -> T:
        """Return what rank 0 has."""
        return value

    def by_first(self, work: Callable[[], T], passed_on: type[Exception]) -> T:
        """Let rank 0 work while the others wait; all return its result, or raise its error if it is of that type."""
        return work()

    def check(self) -> None:
        """Raise if another rank is gone, without waiting to be told."""

    def check_same(self, describe: Callable[[], str], what: str) -> None:
        """Raise RuntimeError if the ranks differ in something that they must have in common."""


class Group(Ranks):
    """Several processes, each of which calls every method at the same point of the training.

    Args:
        seat: which of them this is.
        explain: turns a broken connection into the error that is raised instead.
        is_lost: tells whether a rank is known to be gone.
    """

    def __init__(
        self,
        seat: Seat,
        explain: Callable[[Exception], Exception] | None = None,
        is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        self.rank, self.count = seat.rank, seat.count
        self._explain, self._is_lost = explain or _unexplained, is_lost
        with self._talking(), _on_loopback():
            store = distributed.FileStore(str(seat.folder / STORE_FILE), self.count)  # type: ignore[attr-defined]
            distributed.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.count, timeout=PATIENCE
            )  # fmt: skip

    def close(self) -> None:
        """Close the connections; the others learn that this rank is gone."""
        if distributed.is_initialized():
            distributed.destroy_process_group()

    def parts(self, indices: NDArray[np.int64], num_parts: int) -> list[NDArray[np.int64]]:
        """Cut the share of this rank; as many parts on each, and none where there are fewer graphs than ranks."""
        share = np.array_split(indices, self.count)[self.rank]
        return cut(share, self.own_parts(num_parts)) if len(share) else []

    def seed_step(self, seed: int, epoch: int, step: int) -> None:
        """Choose the random numbers of a step by its place and the rank: nothing of them has to be saved."""
        words = np.random.SeedSequence([seed % 2**32, epoch, step, self.rank]).generate_state(1, np.uint64)
        seed_everything(int(words[0]) % 2**63)

    def worst(self, value: int) -> int:
        """Return the largest of the ranks' numbers."""
        return int(self._largest(torch.tensor([value]))[0])

    def meet(self, value: int, parameters: Sequence[nn.Parameter]) -> int:
        """Return the largest of the ranks' numbers; a gradient that only others have is zero here."""
        word = self._largest(torch.tensor([value, *(one.grad is not None for one in parameters)]))
        worst, *is_known = word.tolist()
        for parameter, known in zip(parameters, is_known, strict=True):
            # What no rank has stays away: the optimizer leaves such a parameter alone.
            if known and not worst and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return int(worst)

    def sum_gradients(self, parameters: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Add up the gradients of all ranks, in place, and return the sum of their losses; one message per type."""
        total = loss.detach().to(torch.float32).reshape(1)
        by_type: dict[torch.dtype, list[Tensor]] = {total.dtype: [total]}
        for parameter in parameters:
            if parameter.grad is not None:
                by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for tensors in by_type.values():
            flat = torch.cat([one.reshape(-1) for one in tensors]).cpu()
            with self._talking():
                distributed.all_reduce(flat)
            flat = flat.to(total.device)  # there and back once, not once for each
            for one, summed in zip(tensors, torch.split(flat, [one.numel() for one in tensors]), strict=True):
                one.copy_(summed.view_as(one))
        return total[0]

    def copy_buffers(self, module: nn.Module) -> None:
        """Take over the buffers of rank 0, whatever their types, as bytes in one message."""
        buffers = [one for one in module.buffers() if one.numel()]
        if not buffers:
            return
        with torch.no_grad():
            flat = torch.cat([one.detach().reshape(-1).view(torch.uint8) for one in buffers])
            content = flat.cpu()
            with self._talking():
                distributed.broadcast(content, src=0)
            if self.rank == 0:
                return
            parts = torch.split(content.to(flat.device), [one.numel() * one.itemsize for one in buffers])
            for one, part in zip(buffers, parts, strict=True):
                one.copy_(part.clone().view(one.dtype).view_as(one))

    def gather(self, value: T) -> list[T]:
        """Return what each rank has, in their order."""
        found: list[Any] = [None] * self.count
        with self._talking():
            distributed.all_gather_object(found, value)
        return found

    def first(self, value: T) -> T:
        """Return what rank 0 has."""
        found: list[Any] = [value if self.rank == 0 else None]
        with self._talking():
            distributed.broadcast_object_list(found, src=0)
        return value if self.rank == 0 else found[0]

    def by_first(self, work: Callable[[], T], passed_on: type[Exception]) -> T:
        """Let rank 0 work while the others wait; all return its result, or raise its error if it is of that type."""
        found: T | Exception | None = None
        if self.rank == 0:
            try:
                found = work()
            except passed_on as error:
                found = error
        found = self.first(found)
        if isinstance(found, passed_on):
            raise found
        return found  # type: ignore[return-value]

    def check(self) -> None:
        """Raise if another rank is gone, without waiting to be told."""
        if self._is_lost():
            raise self._explain(RankLostError("another rank is gone"))

    def check_same(self, describe: Callable[[], str], what: str) -> None:
        """Raise RuntimeError if the ranks differ in something that they must have in common."""
        found = self.gather(describe())
        different = [rank for rank, one in enumerate(found) if one != found[0]]
        if different:
            raise RuntimeError(
                f"{what} of rank {different[0]} are not those of rank 0: something is computed or drawn differently in "
                "each process; training.num_ranks=1 does without"
            )

    def _largest(self, word: Tensor) -> Tensor:
        with self._talking():
            distributed.all_reduce(word, op=distributed.ReduceOp.MAX)
        return word

    @contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # all that gloo raises
            raise self._explain(error) from error


def _unexplained(error: Exception) -> Exception:
    return RankLostError(f"the connection to the other ranks broke: {error}")


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let gloo use the interface that leads nowhere else, unless the environment names one."""
    is_named = INTERFACE_VARIABLE in os.environ
    os.environ.setdefault(INTERFACE_VARIABLE, LOOPBACK)
    try:
        yield
    finally:
        if not is_named:
            del os.environ[INTERFACE_VARIABLE]
