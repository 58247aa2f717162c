"""How long, how fast and how safely to train."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kdgat.stage.configuration import Config, ExecutionOnly, execution_keys, without_keys


class TrainingConfig(Config):
    """Set what one `fit` does; fields marked `ExecutionOnly` say where it runs and when it saves, not what it computes.

    >>> TrainingConfig(max_epochs=2, checkpoint_interval_s=5.0).computation()["max_epochs"]
    2
    >>> "checkpoint_interval_s" in TrainingConfig().computation()
    False
    """

    max_epochs: int = Field(30, ge=1)
    batch_by: Literal["graphs", "nodes", "edges"] = "graphs"
    batch_size: int = Field(128, ge=1)  # graphs in a batch, for batch_by graphs
    max_nodes: int = Field(16_384, ge=1)  # budget of a batch, for batch_by nodes
    max_edges: int = Field(65_536, ge=1)  # budget of a batch, for batch_by edges
    accumulate: int = Field(1, ge=1)  # parts that a batch goes through the model in; the gradient is the whole batch's

    learning_rate: float = Field(2e-3, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_fraction: float = Field(0.02, ge=0, lt=1)  # part of all steps in which the learning rate rises from 0
    final_learning_rate_fraction: float = Field(0.01, ge=0, le=1)  # where the cosine ends
    gradient_clip: float | None = Field(1.0, gt=0)  # maximal L2 norm of all gradients

    monitor: str = "validation_loss"
    mode: Literal["min", "max"] = "min"
    patience: int | None = Field(10, ge=1)  # epochs without a better `monitor` before training stops

    accelerator: Annotated[Literal["auto", "cpu", "cuda", "gpu", "mps"], ExecutionOnly] = "auto"
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"
    num_threads: int = Field(1, ge=1)  # of torch on the CPU; another number sums in another order
    num_ranks: Annotated[int | None, ExecutionOnly] = Field(None, ge=1)  # processes that share a batch; see `Ranks`
    deterministic: bool | None = None  # null: yes on the CPU; no on a GPU, where it makes scatter several times slower

    # survival
    checkpoint_interval_s: Annotated[float, ExecutionOnly] = Field(60.0, ge=0)
    checkpoint_every_steps: Annotated[int | None, ExecutionOnly] = Field(None, ge=1)
    # At each epoch end, even if the interval has not passed.
    checkpoint_every_epoch: Annotated[bool, ExecutionOnly] = False
    # Kept free before the deadline, beside what is measured.
    checkpoint_margin_s: Annotated[float, ExecutionOnly] = Field(20.0, ge=0)

    # where time goes
    profile: Annotated[bool, ExecutionOnly] = False
    profile_steps: Annotated[int, ExecutionOnly] = Field(5, ge=1)

    @model_validator(mode="after")
    def _check_precision(self) -> Self:
        if self.precision == "16-mixed" and self.accelerator == "cpu":
            raise ValueError("precision 16-mixed needs a GPU: use bf16-mixed or 32-true with accelerator cpu")
        return self

    def computation(self) -> dict[str, object]:
        """Return the settings that the result depends on: a checkpoint fits a config that has the same ones."""
        return without_keys(self.model_dump(mode="json"), execution_keys(type(self)))
