"""What differs between machines: device, precision, and the optimizer kernels that go with them."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from lightning import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from kdgat.base import ConfigurationError
from kdgat.stage import EnvironmentFaultError
from kdgat.stage.gpus import AMPERE, NO_KERNELS, OF_AMPERE, has_kernels, num_given_gpus
from kdgat.training.config import TrainingConfig


class PlacedFabric(Fabric):
    """Fabric that also knows how far a fit is, and how long: what a module attached to it asks its trainer for."""

    current_epoch: int = 0
    global_step: int = 0
    max_epochs: int = 0
    num_training_batches: int = 0  # of the first epoch

    @property
    def estimated_stepping_batches(self) -> int:
        """Return the steps of all epochs, if all have as many as the first: what schedulers by steps are made for."""
        return self.max_epochs * self.num_training_batches


def make_fabric(config: TrainingConfig) -> PlacedFabric:
    """Choose device and precision; one device, no SLURM integration; errors of `check_accelerator`.

    Raises:
        ConfigurationError: if the device cannot compute in `config.precision`.
    """
    check_accelerator(config.accelerator)
    precision = "32-true" if config.precision == "tf32" else config.precision  # see `products_of`
    fabric = PlacedFabric(
        accelerator=config.accelerator, devices=1, precision=precision, plugins=[LightningEnvironment()]
    )
    without = {"16-mixed": ("cpu",), "tf32": ("cpu", "mps")}.get(config.precision, ())
    if fabric.device.type in without:
        raise ConfigurationError(
            f"training.precision={config.precision} needs a GPU and there is none: use bf16-mixed or 32-true"
        )
    if fabric.device.type == "cuda" and torch.version.hip is None:
        _check_precision(config.precision)
    fabric.launch()
    return fabric


def _check_precision(precision: str) -> None:
    """Refuse what the GPU has no units for, and let large products in half precision be summed in single."""
    capability = torch.cuda.get_device_capability()
    if precision in OF_AMPERE and capability < AMPERE:
        raise ConfigurationError(
            f"training.precision={precision} needs a GPU of capability 8.0 (A100) or newer, and "
            f"{torch.cuda.get_device_name()} has {capability[0]}.{capability[1]}: use 32-true or 16-mixed, or another "
            "kind of GPU"
        )
    if precision == "16-mixed":  # else a V100 meets sums that are too large for 16 bits
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


@contextlib.contextmanager
def products_of(precision: str) -> Iterator[None]:
    """Let products of single precision be computed as `training.precision` says."""
    if precision != "tf32":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def choose_device(accelerator: str = "auto") -> torch.device:
    """Return where to compute what is no training: on a CUDA device or the CPU; errors of `check_accelerator`."""
    check_accelerator(accelerator)
    on_gpu = accelerator not in ("cpu", "mps") and torch.cuda.is_available()
    return torch.device("cuda" if on_gpu else "cpu")


def check_accelerator(accelerator: str) -> None:
    """Refuse a GPU that cannot be used, and one that is not there though the job was given it.

    Raises:
        EnvironmentFaultError: if another node, or this one when it is mended, would do.
        ConfigurationError: if torch, or what was asked for, must change.
    """
    if accelerator == "mps" and not torch.backends.mps.is_available():
        raise ConfigurationError(
            "training.accelerator=mps is Apple's GPU, and torch sees none: set training.accelerator=auto"
        )
    if accelerator in ("cpu", "mps"):
        return
    if torch.cuda.is_available():
        name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
        architectures = torch.cuda.get_arch_list()
        if torch.version.hip is None and not has_kernels(capability, architectures):
            fault = EnvironmentFaultError if num_given_gpus() else ConfigurationError  # a job may get another GPU
            raise fault(
                f"torch {torch.__version__} {NO_KERNELS} {name} (capability {capability[0]}.{capability[1]}; it "
                f"has {', '.join(architectures)}): use another kind of GPU, another build of torch, or "
                "training.accelerator=cpu"
            )
        return
    is_asked_for = accelerator == "cuda" or (accelerator == "gpu" and not torch.backends.mps.is_available())
    if num_given_gpus() == 0 and not is_asked_for:
        return
    given = "the job was given a GPU" if num_given_gpus() else f"training.accelerator={accelerator}"
    if torch.version.cuda is None and torch.version.hip is None:
        raise ConfigurationError(
            f"{given} and torch {torch.__version__} is built without CUDA: install a build with it, or ask for no GPU "
            "and set training.accelerator=cpu"
        )
    reason = _why_no_gpu()
    if num_given_gpus():
        raise EnvironmentFaultError(f"{given} and torch sees none: {reason}")
    raise ConfigurationError(f"{given} and torch sees none: {reason}; ask for a GPU, or set training.accelerator=auto")


def _why_no_gpu() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return "the driver shows no device"


def release_memory() -> None:
    """Give back what nothing refers to any more: cycles, as between a module and what wraps it, and CUDA's cache."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def to_device(fabric: Fabric, batch: Any) -> Any:
    """Move a batch to where the module is."""
    return batch if fabric.device.type == "cpu" else fabric.to_device(batch)


def describe_machine(device: torch.device) -> dict[str, str]:
    """Return what the last bits of a result depend on, beside the code: build of torch, kind of processor, device.

    `cpu` is the instruction set that torch's own kernels use (`ATEN_CPU_CAPABILITY` sets it).
    """
    name = device.type
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = f"{torch.cuda.get_device_name(device)} (capability {major}.{minor})"
    return {"torch": str(torch.__version__), "cpu": torch.backends.cpu.get_cpu_capability(), "device": name}
