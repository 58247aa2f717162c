"""What differs between machines: device, precision, and the optimizer kernels that go with them."""

import torch
from lightning import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import nn

from kdgat.stage.configuration import ConfigurationError
from kdgat.training.config import TrainingConfig


def make_fabric(config: TrainingConfig) -> Fabric:
    """Choose device and precision; one device, no SLURM integration."""
    fabric = Fabric(
        accelerator=config.accelerator, devices=1, precision=config.precision, plugins=[LightningEnvironment()]
    )
    if config.precision == "16-mixed" and fabric.device.type == "cpu":
        raise ConfigurationError("training.precision=16-mixed needs a GPU and there is none: use bf16-mixed or 32-true")
    fabric.launch()
    return fabric


def make_optimizer(module: nn.Module, config: TrainingConfig, fabric: Fabric) -> torch.optim.AdamW:
    """Make AdamW over the trainable parameters, which must be on their device already."""
    return torch.optim.AdamW(
        [parameter for parameter in module.parameters() if parameter.requires_grad],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        # One kernel for all parameters; fabric cannot clip what the fused step unscales itself.
        fused=fabric.device.type in ("cpu", "cuda") and config.precision != "16-mixed",
    )
