"""The state of a fit, apart from weights and optimizer, and how it ended."""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torch import Tensor, nn

from kdgat.stage import Paused


@dataclass
class FitState:
    """Position, best so far and history of one fit; all of it goes into a checkpoint."""

    epoch: int = 0  # running epoch, from 0
    step: int = 0  # training steps done in it
    global_step: int = 0  # training steps done in all
    plan_digest: str = ""  # of the running epoch's plan
    best_epoch: int = -1
    best_metric: float = math.nan
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    best_attributes: dict[str, Any] = field(default_factory=dict)  # numbers and texts of the module, as of that epoch
    epochs_without_progress: int = 0
    history: list[dict[str, float]] = field(default_factory=list)  # rows of metrics.jsonl
    num_parts: int = 1  # that each batch is cut into; doubled when the GPU's memory is short
    is_captured: bool = False  # steps are recorded ones, and stay so: their last bits are others
    batches: dict[str, Any] = field(default_factory=dict)  # what a search for their size found; empty: as configured
    stop_reason: str = ""  # not empty: training is over

    def take_best(self, module: nn.Module, value: float, mode: Literal["min", "max"], tolerance: float = 0.0) -> bool:
        """Keep a copy of the weights if `value` is the best so far, or worse by no more than `tolerance`; tell whether.

        `best_metric` stays the best of all epochs, so that many small steps back are not within the tolerance.
        """
        ahead = self.best_metric - value if mode == "min" else value - self.best_metric
        is_better = self.best_epoch < 0 or ahead > 0.0
        if is_better:
            self.best_metric, self.epochs_without_progress = value, 0
        else:
            self.epochs_without_progress += 1
            if tolerance == 0.0 or -ahead > tolerance:
                return False
        self._check_finite(module)
        self.best_epoch = self.epoch
        self.best_weights = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
        return True

    def _check_finite(self, module: nn.Module) -> None:
        """Raise FloatingPointError if what would be kept as the best is beyond use, whatever the metric says of it."""
        norms = (one for one in module.modules() if isinstance(one, nn.modules.batchnorm._NormBase))
        buffers = {id(buffer) for one in norms for buffer in one.buffers(recurse=False)}
        trained = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
        for name, tensor in module.state_dict(keep_vars=True).items():
            if id(tensor) in buffers | trained and not bool(tensor.isfinite().all()):
                raise FloatingPointError(
                    f"{name} is not finite after epoch {self.epoch} (step {self.global_step}), though the monitored "
                    "metric is: lower training.learning_rate, set training.gradient_clip, or look for values in the "
                    "data that are not finite"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return all fields; tensors are shared, not copied."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "FitState":
        """Restore what `state_dict` returned."""
        return cls(**state)


@dataclass(frozen=True)
class FitResult:
    """How a fit ended; if it was not paused, the module holds the best weights."""

    paused: bool
    reason: str  # why it paused or stopped
    checkpoint: str  # newest one, relative to the run directory
    best_epoch: int
    best_metric: float
    epochs: int  # epochs completed
    metrics: dict[str, float]  # of the best epoch
    attributes: dict[str, Any]  # numbers and texts of the module that training has changed, as of the best epoch
    history: list[dict[str, float]]
    needed_s: float | None = None  # how long a job must last at least, if this one was too short to train in

    def as_paused(self) -> Paused:
        """Return the outcome of a stage whose fit paused."""
        return Paused(checkpoint=self.checkpoint, reason=self.reason, needed_s=self.needed_s)
