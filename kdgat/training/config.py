"""How long, how fast and how safely to train."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from kdgat.base import Config, ConfigurationError
from kdgat.base.configuration import ExecutionOnly, execution_keys, without_keys
from kdgat.cluster.resources import MemoryText, parse_memory

BatchSizeMode = Literal["fixed", "static", "tuner", "trial"]
LoggerName = Literal["tensorboard", "mlflow", "wandb"]  # each is the module that it needs, too
ANY_DATASET: Final = "_default"
LOGGER_PACKAGES: Final = {"mlflow": "mlflow-skinny"}  # the client alone, where it has another name than its module
SAFETY_FACTORS: Final = {ANY_DATASET: 0.5}
SEARCH_PEAK: Final = (
    2  # times the memory budget that the steps of a search may take: they double until one is too large
)


def _as_factors(value: Any) -> Any:
    """Take a single number for all datasets, and 0.5 for those that are not named."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {ANY_DATASET: value}
    return {**SAFETY_FACTORS, **value} if isinstance(value, Mapping) else value


def _check_factors(factors: dict[str, float]) -> dict[str, float]:
    for name, factor in factors.items():
        if not 0 < factor <= 1:
            raise ValueError(f"the factor of {name} is {factor:g}: give a part above 0 and up to 1, usually 0.3 to 0.7")
    return factors


SafetyFactors = Annotated[dict[str, float], BeforeValidator(_as_factors), AfterValidator(_check_factors)]


def _refuse_former_mode(mode: Any) -> Any:
    if mode in ("power", "binsearch"):
        raise ValueError("is called tuner here, which doubles and then bisects: give tuner, static, trial or fixed")
    return mode


class TrainingConfig(Config):
    """Set what one `fit` does; fields marked `ExecutionOnly` say where it runs and when it saves, not what it computes.

    >>> TrainingConfig(max_epochs=2, checkpoint_interval_s=5.0).computation()["max_epochs"]
    2
    >>> "checkpoint_interval_s" in TrainingConfig().computation()
    False
    """

    max_epochs: int = Field(30, ge=1, description="passes over the training data at most")
    batch_by: Literal["graphs", "nodes", "edges"] = Field(
        "graphs", description="what fills a batch: graphs (windows, instances, trees), nodes or edges"
    )
    batch_size: int = Field(128, ge=1, description="graphs (windows, instances, trees) in a batch, for batch_by graphs")
    max_nodes: int = Field(16_384, ge=1, description="nodes in a batch, for batch_by nodes")
    max_edges: int = Field(65_536, ge=1, description="edges in a batch, for batch_by edges: what its memory goes by")
    accumulate: int = Field(
        1,
        ge=1,
        description=(
            "parts that a batch goes through the model in, to save memory; the gradient is that of the whole batch"
        ),
    )
    # How the limit of `batch_by` comes about: as given above, or found by a search. Defaults are left out of what is
    # written, so that runs without one keep their identity.
    batch_size_mode: Annotated[BatchSizeMode, BeforeValidator(_refuse_former_mode)] = Field(
        "fixed",
        exclude_if=lambda mode: mode == "fixed",
        description=(
            "fixed: batches as given above; static, tuner or trial: as large as fits memory_budget, found before "
            "the first step"
        ),
    )
    # That a step may take, where it is searched; null: what is free of a GPU.
    memory_budget: MemoryText | None = Field(
        None,
        exclude_if=lambda budget: budget is None,
        description=(
            "that a training step may take, as 4G, where batches are searched for; null: what is free of the GPU"
        ),
    )
    # Part of what was found that is used, by dataset: usually 0.3 to 0.7.
    safety_factor: SafetyFactors = Field(
        SAFETY_FACTORS,
        exclude_if=lambda factors: factors == SAFETY_FACTORS,
        description="part of what was found that is used, by name of the dataset; 0.3 to 0.7, or one number for all",
    )

    learning_rate: float = Field(2e-3, gt=0, description="of AdamW at its highest")
    weight_decay: float = Field(1e-4, ge=0, description="of AdamW")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="of the learning rate: cosine or constant")
    warmup_fraction: float = Field(
        0.02, ge=0, lt=1, description="part of all steps in which the learning rate rises from 0"
    )
    final_learning_rate_fraction: float = Field(
        0.01, ge=0, le=1, description="of the learning rate, where the cosine ends"
    )
    gradient_clip: float | None = Field(1.0, gt=0, description="largest norm of all gradients; null: not limited")

    monitor: str = Field(
        "validation_loss", description="which metric tells the best epoch, whose weights are handed on"
    )
    mode: Literal["min", "max"] = Field(
        "min", description="whether a smaller (min) or larger (max) value of it is better"
    )
    # Of epochs whose `monitor` is worse than the best by no more than this the last one is taken: on few validation
    # windows the differences are chance, and late epochs have the small learning rates.
    monitor_tolerance: float = Field(
        0.0,
        ge=0.0,
        allow_inf_nan=False,
        exclude_if=lambda tolerance: tolerance == 0.0,
        description="of epochs that are worse by no more than this the last one is taken: their differences are chance",
    )
    patience: int | None = Field(10, ge=1, description="epochs without a better one before training stops; null: never")

    accelerator: Annotated[Literal["auto", "cpu", "cuda", "gpu", "mps"], ExecutionOnly] = Field(
        "auto", description="auto, cpu, cuda"
    )
    # tf32: single precision whose matrix products round their factors to ten bits, as a GPU's tensor cores take them.
    precision: Literal["32-true", "tf32", "16-mixed", "bf16-mixed"] = Field(
        "32-true", description="32-true, bf16-mixed, or tf32 or 16-mixed on a GPU"
    )
    num_threads: int = Field(
        1, ge=1, description="of torch on the CPU, per stage; stages run side by side on the other cores"
    )
    # Processes that share a batch; see `Ranks`.
    num_ranks: Annotated[int | None, ExecutionOnly] = Field(
        None,
        ge=1,
        exclude_if=lambda number: number is None,
        description=(
            "processes that share each batch of one stage; null: one, or one on each GPU that the job was given"
        ),
    )
    # Steps on a GPU as one CUDA graph, on padded batches, whose last bits are others; null: where they can be.
    capture: Annotated[bool | None, ExecutionOnly] = Field(
        None,
        exclude_if=lambda is_on: is_on is None,
        description="steps on a GPU as one CUDA graph, whose last bits are others; null: where a network can",
    )
    deterministic: bool | None = Field(None, description="null: bit for bit repeatable on the CPU, fast on a GPU")

    # survival
    checkpoint_interval_s: Annotated[float, ExecutionOnly] = Field(
        60.0, ge=0, description="seconds between two checkpoints"
    )
    checkpoint_every_steps: Annotated[int | None, ExecutionOnly] = Field(
        None, ge=1, description="also after this many steps"
    )
    # At each epoch end, even if the interval has not passed.
    checkpoint_every_epoch: Annotated[bool, ExecutionOnly] = Field(False, description="also at the end of each epoch")
    # Kept free before the deadline, beside what is measured.
    checkpoint_margin_s: Annotated[float, ExecutionOnly] = Field(
        20.0, ge=0, description="seconds kept free before a deadline, beside what saving was measured to take"
    )

    # where time goes
    profile: Annotated[bool, ExecutionOnly] = Field(
        False,
        description=(
            "where the time of a few steps goes: in the log, the report, and as a trace for TensorBoard in profile/"
        ),
    )
    profile_steps: Annotated[int, ExecutionOnly] = Field(5, ge=1, description="as many")
    # What takes the memory of a GPU; see `kdgat.training.gpu_memory`.
    memory_snapshot: Annotated[bool, ExecutionOnly] = Field(
        False,
        exclude_if=lambda is_on: not is_on,
        description="what takes a GPU's memory, by lines of the code: memory_snapshot.pickle, for https://pytorch.org/memory_viz",
    )
    # What else gets the rows of metrics.jsonl; see `kdgat.training.loggers`.
    loggers: Annotated[tuple[LoggerName, ...], ExecutionOnly] = Field(
        (),
        exclude_if=lambda names: not names,
        description="what else gets each epoch's metrics: tensorboard, mlflow, wandb; see docs/sweeps.md",
    )

    @field_validator("loggers")
    @classmethod
    def _refuse_repeated_loggers(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) != len(names):
            raise ValueError("a logger stands twice: list each once")
        return names

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        if self.precision in ("16-mixed", "tf32") and self.accelerator == "cpu":
            raise ValueError(f"precision {self.precision} needs a GPU: use bf16-mixed or 32-true with accelerator cpu")
        if self.batch_size_mode != "fixed" and self.accelerator == "cpu" and self.memory_budget is None:
            raise ValueError(budget_needed(self.batch_size_mode))
        return self

    def for_dataset(self, name: str) -> Self:
        """Return what a fit on this dataset reads: its own safety factor alone, and none where nothing is searched."""
        if self.batch_size_mode == "fixed":
            return self.model_copy(update={"memory_budget": None, "safety_factor": SAFETY_FACTORS})
        factor = self.safety_factor.get(name, self.safety_factor[ANY_DATASET])
        return self.model_copy(update={"safety_factor": {ANY_DATASET: factor}})

    def search_bytes(self) -> int | None:
        """Return what steps take at most while a search tries them; None where nothing bounds that beforehand."""
        if self.batch_size_mode == "fixed" or self.memory_budget is None:
            return None
        return SEARCH_PEAK * (parse_memory(self.memory_budget) << 20)

    def require_loggers(self) -> None:
        """Raise ConfigurationError if a logger's package is not installed here."""
        for name in self.loggers:
            if find_spec(name) is None:
                raise ConfigurationError(
                    f"training.loggers: {name} is not installed: pip install {LOGGER_PACKAGES.get(name, name)}, or "
                    "leave it out"
                )

    def computation(self) -> dict[str, object]:
        """Return the settings that the result depends on: a checkpoint fits a config that has the same ones."""
        return without_keys(self.model_dump(mode="json"), execution_keys(type(self)))


def budget_needed(mode: BatchSizeMode) -> str:
    """Say that a search on the CPU needs to know how much memory it may find a batch for."""
    return (
        f"batch_size_mode={mode} on the CPU needs memory_budget: set training.memory_budget to the memory that a "
        "training step may take, as 4G, or training.batch_size_mode=fixed"
    )


def learning_rate(config: TrainingConfig, progress: float) -> float:
    """Return the learning rate at `progress`, the fraction of all epochs done, in [0, 1).

    A pure function, so that a checkpoint has no schedule state to lose.
    Epochs may differ in length (a curriculum's do): progress counts within each epoch's own length.
    """
    if progress < config.warmup_fraction:
        # The first step has progress 0 and must not be lost: the ramp starts at a hundredth.
        return config.learning_rate * max(progress / config.warmup_fraction, 0.01)
    if config.schedule == "constant":
        return config.learning_rate
    part = (progress - config.warmup_fraction) / (1.0 - config.warmup_fraction)
    floor = config.final_learning_rate_fraction
    return config.learning_rate * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(part, 1.0))))
