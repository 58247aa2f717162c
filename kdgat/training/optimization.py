"""The optimizer of a fit and what sets its learning rate: AdamW as configured, or what the module makes by itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning import Fabric, LightningModule
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.core.optimizer import (
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _validate_optimizers_attached,
    _validate_scheduler_api,
)
from lightning.pytorch.utilities.model_helpers import is_overridden

from kdgat.base import ConfigurationError, UserError
from kdgat.training.config import TrainingConfig, learning_rate


def has_optimizer(module: LightningModule) -> bool:
    """Return whether a module makes its optimizer by itself."""
    return is_overridden("configure_optimizers", module)


class Optimization:
    """One optimizer, on the parameters' device, with the schedulers of its learning rate."""

    def __init__(self, module: LightningModule, config: TrainingConfig, fabric: Fabric) -> None:
        """Make it; UserError if the module makes none, several, or one whose step needs to be told the loss."""
        self._module, self._config = module, config
        self.is_own = has_optimizer(module)
        self.optimizer: torch.optim.Optimizer
        self._schedulers: Sequence[Any] = ()  # Lightning's description of each
        if self.is_own:
            self.optimizer, self._schedulers = _of_module(module)
        else:
            self.optimizer = torch.optim.AdamW(
                [parameter for parameter in module.parameters() if parameter.requires_grad],
                lr=config.learning_rate,
                weight_decay=config.weight_decay,
                # One kernel for all parameters; fabric cannot clip what the fused step unscales itself.
                fused=fabric.device.type in ("cpu", "cuda") and config.precision != "16-mixed",
            )

    @property
    def rate(self) -> float:
        """Return the learning rate of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    def begin_step(self, progress: float) -> float:
        """Set the learning rate at this part of all epochs, unless the module's schedulers do; return it."""
        if not self.is_own:
            rate = learning_rate(self._config, progress)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
        return self.rate

    def end_step(self, global_step: int) -> None:
        """Step the schedulers that go by steps; so many are done."""
        self._step("step", global_step, {})

    def end_epoch(self, num_epochs: int, metrics: Mapping[str, float]) -> None:
        """Step the schedulers that go by epochs; so many are done, the last one with these metrics.

        Raises:
            ConfigurationError: if one of them monitors what is no metric.
        """
        self._step("epoch", num_epochs, metrics)

    def _step(self, interval: str, done: int, metrics: Mapping[str, float]) -> None:
        for one in self._schedulers:
            if one.interval != interval or done % one.frequency:
                continue
            value = None
            if one.reduce_on_plateau:
                if one.monitor not in metrics:
                    raise ConfigurationError(
                        f"the scheduler of {type(self._module).__name__}.configure_optimizers monitors "
                        f"{one.monitor!r}, which is no metric of this model: choose one of {', '.join(sorted(metrics))}"
                    )
                value = metrics[one.monitor]
            self._module.lr_scheduler_step(one.scheduler, value)

    def schedulers_state(self) -> list[dict[str, Any]]:
        """Return the states of the schedulers."""
        return [one.scheduler.state_dict() for one in self._schedulers]

    def load_schedulers(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Put them back; ValueError if they are of other ones."""
        for one, state in zip(self._schedulers, states, strict=True):
            one.scheduler.load_state_dict(state)


def _of_module(module: LightningModule) -> tuple[torch.optim.Optimizer, Sequence[Any]]:
    """Return what `configure_optimizers` makes, in all forms that Lightning knows."""
    name = f"{type(module).__name__}.configure_optimizers"
    made: Any = module.configure_optimizers()
    if made is None or (isinstance(made, Mapping) and "optimizer" not in made):
        raise UserError(f"{name} makes no optimizer: return one")
    try:
        optimizers, schedulers, monitor = _configure_optimizers(made)
        configured = _configure_schedulers_automatic_opt(schedulers, monitor)
        _validate_optimizers_attached(optimizers, configured)
        _validate_scheduler_api(configured, module)
    except MisconfigurationException as error:
        raise UserError(f"{name}: {' '.join(str(error).split())}") from error
    if len(optimizers) != 1:
        raise UserError(f"{name} makes {len(optimizers)} optimizers: make one, with several groups of parameters")
    (optimizer,) = optimizers
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UserError(
            f"{name} makes {type(optimizer).__name__}, whose step computes the loss anew: choose one without a closure"
        )
    by_step = [one.monitor for one in configured if one.reduce_on_plateau and one.interval == "step"]
    if by_step:
        raise UserError(f"{name} has a scheduler of {by_step[0]} by steps, which is known by epochs: interval='epoch'")
    return optimizer, configured
