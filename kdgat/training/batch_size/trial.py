"""Training steps that only measure memory, and the parts of a batch that does not fit: what they change is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from lightning import Fabric, LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn

from kdgat.base import MIB, ConfigurationError
from kdgat.cluster.resources import parse_memory
from kdgat.training import EpochSource, TrainingConfig
from kdgat.training.attributes import Attributes
from kdgat.training.averages import Averages
from kdgat.training.config import budget_needed
from kdgat.training.device import release_memory
from kdgat.training.measure import measure_allocation
from kdgat.training.optimization import Optimization
from kdgat.training.random_state import separate_randomness
from kdgat.training.steps import Steps

logger = logging.getLogger(__name__)


def cut(indices: NDArray[np.int64], num_parts: int) -> list[NDArray[np.int64]]:
    """Cut a batch into at most `num_parts` parts of nearly equal numbers of graphs, none of them empty."""
    if num_parts == 1:
        return [indices]
    return list(np.array_split(indices, min(num_parts, len(indices))))


def double_parts(num_parts: int, num_graphs: int, error: torch.OutOfMemoryError) -> int:
    """Return twice the number of parts and free what the failed attempt left cached.

    Raises:
        torch.OutOfMemoryError: the one given, if a part is a single graph already.
    """
    if num_parts >= num_graphs:
        raise error
    free_memory(reason_of(error), 2 * num_parts)
    return 2 * num_parts


def reason_of(error: torch.OutOfMemoryError) -> str:
    """Return the first line of an error, and let go of what its frames hold: the tensors of the failed attempt."""
    error.__traceback__ = None
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def free_memory(reason: str, num_parts: int) -> None:
    """Free what a failed attempt left cached, and say in how many parts batches go through the model now."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
    logger.warning("GPU memory is short (%s): batches are cut into %d parts from now on", reason, num_parts)


class StepStart:
    """What a training step changes before its gradient is complete, put back when the step is done again in parts.

    Buffers of the module and torch's random states. Those of Python and numpy are left alone: they take longer to copy
    than a small step takes, and models draw from torch.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._places = [(one._buffers, name) for one in module.modules() for name in one._buffers]
        self._buffers: list[tuple[Tensor | None, Tensor | None]] = []
        self._random: list[Tensor] = []

    def note(self) -> None:
        """Remember how it is now."""
        with torch.no_grad():
            found = [buffers[name] for buffers, name in self._places]
            self._buffers = [(buffer, None if buffer is None else buffer.clone()) for buffer in found]
        self._random = [torch.get_rng_state()]
        if self._device is not None:
            self._random.append(torch.cuda.get_rng_state(self._device))

    def put_back(self) -> None:
        """Make it as it was."""
        with torch.no_grad():
            for (buffers, name), (buffer, values) in zip(self._places, self._buffers, strict=True):
                if buffer is not None and values is not None:
                    buffer.copy_(values)
                buffers[name] = buffer
        torch.set_rng_state(self._random[0])
        if self._device is not None:
            torch.cuda.set_rng_state(self._random[1], self._device)


def memory_budget(config: TrainingConfig, device: torch.device) -> int:
    """Return the bytes that a training step may take: those of the configuration, on a GPU at most what is free of it.

    Raises:
        ConfigurationError: if the configuration names none and the device does not say.
    """
    configured = None if config.memory_budget is None else parse_memory(config.memory_budget) * MIB
    if device.type == "cuda":
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device)
        return free if configured is None else min(configured, free)
    if device.type != "cpu":
        raise ConfigurationError(
            f"training.batch_size_mode={config.batch_size_mode} needs a device that counts its memory, and "
            f"{device.type} does not: set training.batch_size_mode=fixed, or training.accelerator=cpu"
        )
    if configured is None:
        raise ConfigurationError(budget_needed(config.batch_size_mode))
    return configured


class StepTrials:
    """Measure the memory of training steps on any graphs of a source; made by `step_trials`."""

    def __init__(self, fabric: Fabric, module: LightningModule, source: EpochSource, config: TrainingConfig) -> None:
        self._fabric, self._module, self._source, self._config = fabric, module, source, config
        self._steps = Steps(module)
        self._raw_optimizer = Optimization(module, config, fabric).optimizer
        for group in self._raw_optimizer.param_groups:
            group["lr"] = group["weight_decay"] = 0.0
        # Moments and gradients are there before anything is counted, as they are in all parts of a batch but the first:
        # what a step takes beside them is then in proportion to the batch, however large the weights are.
        self._trained = [parameter for group in self._raw_optimizer.param_groups for parameter in group["params"]]
        for parameter in self._trained:
            parameter.grad = torch.zeros_like(parameter)
        self._raw_optimizer.step()
        optimizer = fabric.setup_optimizers(self._raw_optimizer)
        assert not isinstance(optimizer, tuple)  # several for several
        self._optimizer = optimizer
        self._out_of_memory: torch.OutOfMemoryError | None = None  # of the last step that was too large for the device

    def kept_bytes(self) -> int:
        """Return the bytes of weights, gradients, buffers and moments."""
        moments = (value for state in self._raw_optimizer.state.values() for value in state.values())
        tensors = [
            *self._module.parameters(),
            *self._module.buffers(),
            *(parameter.grad for parameter in self._trained),
            *moments,
        ]
        return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))

    def measure(self, indices: NDArray[np.int64]) -> int | None:
        """Return the bytes that tensors take at most in a step on these graphs; None if the device ran out of them."""
        device = self._fabric.device
        try:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
                self._step(indices)
                return torch.cuda.max_memory_allocated(device)
            return self.kept_bytes() + measure_allocation(lambda: self._step(indices)).peak_bytes
        except torch.OutOfMemoryError as error:
            error.__traceback__ = None  # its frames hold the tensors of the failed step
            self._out_of_memory = error
        self._clear_gradients()
        release_memory()
        return None

    def too_large(self) -> torch.OutOfMemoryError:
        """Return the error of the last step that was too large for the device."""
        assert self._out_of_memory is not None, "no step was"
        return self._out_of_memory

    def _step(self, indices: NDArray[np.int64]) -> None:
        """Do what the trainer does with a batch: forward and backward, part by part, and the optimizer's step."""
        for part in cut(indices, self._config.accumulate):
            batch, averages = self._steps.receive(self._fabric, self._source.gather(part)), Averages()
            with averages.listen(self._module), self._fabric.autocast():
                loss = self._steps.train(batch, 0)
            averages.clear()
            self._fabric.backward(loss * (len(part) / len(indices)))
        if self._config.gradient_clip is not None:
            self._fabric.clip_gradients(
                self._module, self._optimizer, max_norm=self._config.gradient_clip, error_if_nonfinite=False
            )
        self._optimizer.step()
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        self._raw_optimizer.zero_grad(set_to_none=False)


@contextmanager
def step_trials(
    fabric: Fabric, module: LightningModule, source: EpochSource, config: TrainingConfig, seed: int
) -> Iterator[StepTrials]:
    """Measure steps in the context; all that a step changes is put back at its end.

    Args:
        fabric, module: as training has them; the optimizer of training is not touched, measuring has its own.
        source: of the graphs.
        config: of the fit.
        seed: of what is random in the steps.
    """
    weights = [(parameter, parameter.detach().cpu().clone(), parameter.grad) for parameter in module.parameters()]
    modes = [(one, one.training) for one in module.modules()]
    precision = fabric.strategy.precision
    scale = precision.state_dict()
    attributes = Attributes(module)
    as_before, start = attributes.state_dict(of_all=True), StepStart(module, fabric.device)
    start.note()
    with separate_randomness(seed):
        try:
            module.train()
            yield StepTrials(fabric, module, source, config)
        finally:
            with torch.no_grad():
                for parameter, values, gradient in weights:
                    parameter.copy_(values)
                    parameter.grad = gradient
            start.put_back()
            attributes.load_state_dict(as_before, fabric.device)
            precision.load_state_dict(scale)
            for one, mode in modes:
                one.training = mode
            release_memory()
            if fabric.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(fabric.device)  # what training takes is not what was tried
