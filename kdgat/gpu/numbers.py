"""Loss and gradient of every network, on the device against the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode

from kdgat.gpu.networks import NETWORKS
from kdgat.gpu.step import Stepper, make_stepper
from kdgat.training.device import products_of
from kdgat.training.random_state import repeatable, seed_everything

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows

# Above this part of its size a difference in single precision is no rounding; assignment magnifies it by 44 sweeps.
LIMIT: Final = 1e-4
LIMIT_OF_LAP: Final = 1e-2
PLAIN: Final = "32-true"
PRECISIONS: Final = (PLAIN, "tf32", "bf16-mixed", "16-mixed")  # of `training.precision`


class DrawnOnHost(TorchFunctionMode):
    """Draw random numbers on the host, whatever device they are for: both devices get the same ones."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and those that draw without their device."""
        kwargs = kwargs or {}
        if func in (torch.rand, torch.randn) and kwargs.get("device") is not None:
            device = kwargs["device"]
            return func(*args, **{**kwargs, "device": "cpu"}).to(device)
        return func(*args, **kwargs)


def compare(device: str, rows: Rows) -> None:
    """Add for each network and precision how far loss and gradient are from those of the processor.

    Raises:
        RuntimeError: naming the networks that do not compute in single precision, or not the same.
    """
    wrong: list[str] = []
    for name in NETWORKS:
        expected = make_stepper(name, "cpu", dropout=0.0)
        loss = _backward(expected)
        gradient = expected.gradient()
        row: dict[str, object] = {"network": name, "loss": loss}
        for precision in PRECISIONS:
            with products_of(precision):
                found = make_stepper(name, device, dropout=0.0, precision=precision)
                try:
                    row[f"loss, {precision}"] = abs(_backward(found) - loss) / abs(loss)
                    row[f"gradient, {precision}"] = float((found.gradient() - gradient).norm() / gradient.norm())
                except RuntimeError as error:
                    row[f"loss, {precision}"] = _first_line(error)
        row["deterministic"] = _refused(name, device) or "no operator is refused"
        rows.add(**row)
        limit = LIMIT_OF_LAP if name.startswith("LAP") else LIMIT
        differences = [row.get(f"{what}, {PLAIN}") for what in ("loss", "gradient")]
        if not all(isinstance(one, float) and one <= limit for one in differences):  # NaN is no number, text an error
            wrong.append(f"{name} ({', '.join(map(str, differences))})")
    if wrong:
        raise RuntimeError(f"loss and gradient in single precision are not the processor's: {'; '.join(wrong)}")


def _backward(stepper: Stepper) -> float:
    stepper.module.eval()  # without dropout
    seed_everything(0)
    with DrawnOnHost():
        loss = stepper.loss(stepper.batch(0))
    scale = 1024.0 if stepper.precision == "16-mixed" else 1.0  # as a gradient scaler would, against underflow
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    for parameter in stepper.module.parameters():
        if parameter.grad is not None:
            parameter.grad /= scale
    return float(loss.detach())


def _refused(name: str, device: str) -> str:
    with repeatable(1, True, strict=True):
        try:
            make_stepper(name, device).train(1)
        except RuntimeError as error:
            return _first_line(error)
    return ""


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
