"""Training steps as one CUDA graph: gather, model and optimizer, which the host launches at once.

In a step of small graphs a card computes a fifteenth of the time: the rest is Python, and hundreds of launches. A CUDA
graph records them once, for fixed shapes, and is launched as a whole. Batches are padded to the sizes of the largest
one of an epoch (`kdgat.graphs.padding`), which the plan tells beforehand: so a resumed epoch has the same shapes, and
the same bits.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from numpy.typing import NDArray
from torch import Tensor, nn

from kdgat.base import UserError
from kdgat.graphs.padding import Capacity, StaticGather
from kdgat.training.averages import Averages
from kdgat.training.config import TrainingConfig
from kdgat.training.graph_source import GraphSource
from kdgat.training.optimization import has_optimizer
from kdgat.training.source import EpochSource
from kdgat.training.steps import HOOKS_OF_STEPS, takes_index

logger = logging.getLogger(__name__)

WARM_UP_STEPS: Final = 3  # before a recording: libraries allocate and choose their kernels in the first ones
LOSS: Final = "train_loss"


def why_not(
    config: TrainingConfig, device: torch.device, module: LightningModule, source: EpochSource, num_ranks: int
) -> str:
    """Return why steps cannot be recorded here; empty if they can."""
    if device.type != "cuda":
        return "there is no GPU"
    if num_ranks > 1:
        return "several processes train together, and add up their gradients on the host"
    if not getattr(module, "takes_padding", False) or takes_index(module.training_step):
        return f"{type(module).__name__} heeds no masks of padding"
    if not isinstance(source, GraphSource) or source.placed() is None:
        return "the graphs do not lie in the GPU's memory"
    if config.precision == "16-mixed":
        return "training.precision=16-mixed looks at each step's gradients"
    if config.accumulate > 1:
        return "batches are gone through in parts (training.accumulate)"
    if has_optimizer(module) or any(is_overridden(hook, module) for hook in HOOKS_OF_STEPS):
        return f"{type(module).__name__} has an optimizer or hooks of its own"
    return ""


def require_random_numbers(device: torch.device, failure: RuntimeError) -> None:
    """Raise UserError if a GPU draws no numbers any more, as torch leaves it where a recording was broken off."""
    state = torch.cuda.get_rng_state(device)
    try:
        torch.rand(1, device=device)
    except RuntimeError as error:
        raise UserError(
            f"steps could not be recorded ({failure}), and the GPU draws no random numbers since ({error}): set "
            "training.capture=false"
        ) from failure
    torch.cuda.set_rng_state(state, device)


class CapturedSteps:
    """Take training steps by replaying them; what is logged is added up on the device.

    Args:
        module: its `training_step` heeds the masks of a padded batch.
        optimizer: of all its parameters, with its state on the device.
        source: its graphs lie on the device.
        averages: of what the module logs.
        config: of the fit.
        autocast: opens the context that products are computed in.
    """

    def __init__(
        self,
        module: LightningModule,
        optimizer: torch.optim.Optimizer,
        source: GraphSource,
        averages: Averages,
        config: TrainingConfig,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._module, self._optimizer, self._source = module, optimizer, source
        self._averages, self._clip, self._autocast = averages, config.gradient_clip, autocast
        self._parameters = [one for group in optimizer.param_groups for one in group["params"]]
        self._device = self._parameters[0].device
        self._rate = torch.zeros((), device=self._device)
        self._loss = torch.zeros((), device=self._device)
        self._names: tuple[str, ...] = ()  # of what is logged, once that is known
        self._sums = torch.zeros(0, dtype=torch.float64, device=self._device)
        self._views: dict[str, Tensor] = {}
        self._graphs: dict[Capacity, tuple[StaticGather, torch.cuda.CUDAGraph]] = {}  # by sizes of the batches
        self._stream: torch.cuda.Stream | None = None

    def begin(self, plan: Sequence[NDArray[np.int64]]) -> None:
        """Let the batches of an epoch come next."""
        placed = self._source.placed()
        assert placed is not None
        capacity = Capacity.of(placed.columns, plan)
        known = self._graphs.get(capacity)
        self._gather = known[0] if known else StaticGather(placed.columns, capacity, placed.order)

    def choose(self, indices: NDArray[np.int64], rate: float) -> None:
        """Let the step of this batch come next; it is recorded if none of its sizes was.

        Raises:
            RuntimeError: if it cannot be, for want of memory or by an operator; nothing has changed then.
        """
        self._gather.choose(indices)
        self._rate.fill_(rate)
        if self._gather.capacity not in self._graphs:
            self._graphs[self._gather.capacity] = self._gather, self._record()

    def step(self, num_graphs: int) -> Tensor:
        """Do the optimizer step of the batch that was chosen; return its loss."""
        for name, view in self._views.items():
            found = self._averages.sums.get(name)
            if found is None:
                view.zero_()
            elif found is not view:  # of a checkpoint
                view.copy_(torch.as_tensor(found))
        self._graphs[self._gather.capacity][1].replay()
        for name, view in self._views.items():
            self._averages.weights[name] = self._averages.weights.get(name, 0) + num_graphs
            self._averages.sums[name] = view
        return self._loss.clone()

    def _take(self) -> None:
        """Take a step; gradients are None before, so that the backward pass writes them and need not add."""
        batch = self._gather()
        logged: dict[str, Tensor] = {}
        before = self._module.__dict__.get("log")
        self._module.__dict__["log"] = logged.__setitem__
        try:
            with self._autocast():
                loss = self._module.training_step(batch)
        finally:
            self._module.__dict__["log"] = before
        assert isinstance(loss, Tensor)
        logged.setdefault(LOSS, loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimizer.step()
        if not self._names:
            self._names = tuple(logged)
            self._sums = torch.zeros(len(logged), dtype=torch.float64, device=self._device)
            self._views = dict(zip(self._names, self._sums.unbind(), strict=True))
        self._loss.copy_(loss.detach())
        weight = batch.is_graph.sum()
        self._sums += torch.stack([logged[name].detach().to(torch.float64) for name in self._names]) * weight

    def _record(self) -> torch.cuda.CUDAGraph:
        """Record a step; weights, moments, sums and random state are afterwards as before."""
        device, optimizer = self._device, self._optimizer
        random_state = torch.cuda.get_rng_state(device)
        weights = [one.detach().clone() for one in self._parameters]
        buffers = [one.detach().clone() for one in self._module.buffers()]
        states = {
            one: {name: value.clone() for name, value in optimizer.state[one].items()}
            for one in self._parameters
            if one in optimizer.state
        }
        sums = self._sums.clone()
        settings = [(group["lr"], group["capturable"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = self._rate, True
        # The same stream for warm-up and recording, so that autograd stays on it.
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(self._stream), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*capturable=True.*")
                for _ in range(WARM_UP_STEPS):
                    optimizer.zero_grad(set_to_none=True)
                    self._take()
            optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            pool = next((recorded.pool() for _, recorded in self._graphs.values()), None)
            with torch.cuda.graph(graph, pool=pool, stream=self._stream):
                self._take()
            return graph
        finally:
            torch.cuda.current_stream(device).wait_stream(self._stream)
            with torch.no_grad():
                for parameter, weight in zip(self._parameters, weights, strict=True):
                    parameter.copy_(weight)
                    for name, value in optimizer.state[parameter].items():
                        if parameter in states:
                            value.copy_(states[parameter][name])
                        else:
                            value.zero_()
                for buffer, value in zip(self._module.buffers(), buffers, strict=True):
                    buffer.copy_(value)
                if len(sums):
                    self._sums.copy_(sums)
            for group, (rate, capturable) in zip(optimizer.param_groups, settings, strict=True):
                group["lr"], group["capturable"] = rate, capturable
            torch.cuda.set_rng_state(random_state, device)
