"""Epoch means of whatever a module logs, kept on its device so that a step does not wait for the GPU.

What lies on the CPU is added up as Python's numbers: the same bits, and a tenth of the time that tensors of one take.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, SupportsFloat

import torch
from lightning import LightningModule
from torch import Tensor, nn

from kdgat.base import UserError


class Averages:
    """Weighted sums per name; weights are numbers of graphs."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor | float] = {}
        self.weights: dict[str, float] = {}
        self.metrics: dict[str, str] = {}  # objects of torchmetrics by the name they are logged under: where they are
        self._module: LightningModule | None = None
        self._default_weight = 1

    def add(self, name: str, value: Tensor | float, weight: float) -> None:
        """Add one batch's mean; summed in float64, where the device has it."""
        number: Tensor | float
        if isinstance(value, Tensor) and value.device.type != "cpu":
            number = value.detach().to(torch.float32 if value.device.type == "mps" else torch.float64)
        else:
            number = float(value.detach() if isinstance(value, Tensor) else value)
        if name in self.sums:
            self.sums[name] = self.sums[name] + number * weight
            self.weights[name] += weight
        else:
            self.sums[name] = number * weight
            self.weights[name] = weight

    def clear(self) -> None:
        """Start anew."""
        for metric in self._metrics().values():
            metric.reset()
        self.sums, self.weights, self.metrics = {}, {}, {}

    def end_epoch(self) -> dict[str, float]:
        """Return the mean of each name and what each metric object computes, and start anew."""
        found = self.means() | {name: float(metric.compute()) for name, metric in self._metrics().items()}
        self.clear()
        return found

    def _metrics(self) -> dict[str, Any]:
        assert self._module is not None or not self.metrics
        return {name: self._module.get_submodule(path) for name, path in self.metrics.items()}  # type: ignore[union-attr]

    def copy(self) -> tuple[dict[str, Tensor | float], dict[str, float]]:
        """Return sums and weights as they are now; `add` replaces entries and changes none in place."""
        return dict(self.sums), dict(self.weights)

    def means(self) -> dict[str, float]:
        """Return the mean of each name, NaN of one over no graphs; waits for the device."""
        return {
            name: float(total) / weight if (weight := self.weights[name]) else math.nan
            for name, total in self.sums.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Return sums and weights."""
        sums = {
            name: total.cpu() if isinstance(total, Tensor) else torch.tensor(total, dtype=torch.float64)
            for name, total in self.sums.items()
        }
        return {"sums": sums, "weights": dict(self.weights), "metrics": dict(self.metrics)}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore sums and weights."""
        sums: Mapping[str, Tensor] = state["sums"]
        self.sums = {name: float(one) if device.type == "cpu" else one.to(device) for name, one in sums.items()}
        self.weights = dict(state["weights"])
        self.metrics = dict(state.get("metrics", {}))

    @classmethod
    def merged(cls, states: Iterable[Mapping[str, Any]]) -> "Averages":
        """Add up what several have counted, as their `state_dict` has it, in their order."""
        together = cls()
        for state in states:
            for name, total in state["sums"].items():
                is_first = name not in together.sums
                together.sums[name] = total if is_first else together.sums[name] + total
                weight = state["weights"][name]
                together.weights[name] = weight if is_first else together.weights[name] + weight
        return together

    def for_batch_of(self, num_graphs: int) -> None:
        """Weigh what is logged from now on by this number of graphs unless `log` gets a batch_size."""
        self._default_weight = num_graphs

    def log(
        self, name: str, value: Any, *_: Any, batch_size: int | None = None, reduce_fx: Any = "mean", **__: Any
    ) -> None:
        """Stand in for LightningModule.log: every name becomes an epoch mean, or what a metric object computes."""
        if reduce_fx not in ("mean", torch.mean):
            raise UserError(
                f"the module logs {name!r} with reduce_fx={reduce_fx!r}, and kdgat takes means over an epoch: log a "
                "metric object, as torchmetrics.MaxMetric"
            )
        if isinstance(value, nn.Module) and callable(getattr(value, "compute", None)):
            self.metrics[name] = self._path(name, value)
            return
        if not isinstance(value, Tensor | SupportsFloat):
            raise UserError(
                f"the module logs {name!r} as a {type(value).__name__}, which is no number: log a number, a tensor of "
                "one, or a metric object of torchmetrics"
            )
        self.add(
            name,
            value if isinstance(value, Tensor) else float(value),
            self._default_weight if batch_size is None else batch_size,
        )

    def log_dict(self, dictionary: Mapping[str, Any], *_: Any, **options: Any) -> None:
        """Stand in for LightningModule.log_dict."""
        for name, value in dictionary.items():
            self.log(name, value, **options)

    def _path(self, name: str, metric: nn.Module) -> str:
        """Return where in the module a metric is: a resumed epoch finds it there."""
        assert self._module is not None, "nobody is listened to"
        for path, part in self._module.named_modules():
            if part is metric:
                return path
        raise UserError(f"the module logs {name!r} as a metric object that is no attribute of it: set it in __init__")

    @contextmanager
    def listen(self, module: LightningModule) -> Iterator["Averages"]:
        """Receive what `module` logs while the context lasts."""
        # Instance attributes shadow the methods: Fabric's own log knows neither batch sizes nor epoch means.
        self._module = module
        module.__dict__["log"] = self.log
        module.__dict__["log_dict"] = self.log_dict
        try:
            yield self
        finally:
            module.__dict__.pop("log", None)
            module.__dict__.pop("log_dict", None)
