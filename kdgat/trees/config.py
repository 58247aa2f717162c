"""The configuration of a run on trees: every section in one frozen model."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from kdgat.run import RunConfig
from kdgat.run.config import refuse_unknown
from kdgat.trees.reading.settings import ReadSettings
from kdgat.trees.sections import (
    KINDS,
    EncoderConfig,
    EvaluationConfig,
    GeneratedConfig,
    GrowthConfig,
    HeadConfig,
    OrderConfig,
    PathBudgetConfig,
)

READ_KEYS = ("labels", "target", "contract")
"""Of `data`: what nothing reads where trees are drawn."""


StageName = Annotated[str, Field(json_schema_extra={"enum": list(KINDS.names)})]


class DataConfig(GeneratedConfig):
    """State where trees come from: drawn, or read from files."""

    data_root: str | None = Field(None, description="folder of trees; null: they are drawn")
    labels: str | None = Field(None, description="table of labels: CSV with columns file, and label or target")
    target: str | None = Field(None, description="column of the table that is predicted; null: the only one")
    reading: ReadSettings = Field(ReadSettings(), description="how files become trees")
    contract: bool = Field(False, description="leave out nodes with one child; lengths stay")


class TreesConfig(RunConfig):
    """Hold everything that a run on trees depends on.

    >>> TreesConfig.from_preset("quick", {}, ["encoder.hidden=16"]).encoder.hidden
    16
    """

    preset_package: ClassVar[str] = "kdgat.trees"

    data: DataConfig = Field(
        DataConfig(), description="Which trees there are: drawn ones, whose law is known, or those of a folder."
    )
    encoder: EncoderConfig = Field(
        EncoderConfig(),
        description="The network that makes an embedding of every node: messages along paths of up to three edges.",
    )
    growth: GrowthConfig = Field(
        GrowthConfig(), description="What pretraining predicts of the children of a node, from its ancestors alone."
    )
    order: OrderConfig = Field(
        OrderConfig(), description="How ancestors and descendants are told apart, in pretraining."
    )
    batches: PathBudgetConfig = Field(
        PathBudgetConfig(), description="What a batch may hold: memory goes by the number of paths."
    )
    head: HeadConfig = Field(HeadConfig(), description="How a class or a number is learned from a tree's embedding.")
    label_fractions: tuple[float, ...] = Field(
        (0.05, 1.0), description="of the labels of the training trees, that fine-tuning gets, one model each; []: none"
    )
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="What is measured on the test trees.")
    stages: tuple[StageName, ...] = Field(
        KINDS.names, min_length=1, description="subset to run, with what it needs; --stages"
    )

    def stage_names(self) -> Sequence[str]:
        """Name all stages."""
        return KINDS.names

    def trained_stages(self) -> Sequence[str]:
        """Name the stages that train."""
        return KINDS.trained

    @model_validator(mode="after")
    def _refuse_unknown_stages_to_run(self) -> Self:
        refuse_unknown("stages", self.stages, KINDS.names)
        return self

    @model_validator(mode="after")
    def _check_reading(self) -> Self:
        unused = DataConfig()
        given = [key for key in READ_KEYS if getattr(self.data, key) != getattr(unused, key)]
        if given and self.data.data_root is None:
            raise ValueError(
                f"data.{given[0]} is for trees that are read: give data.data_root (--data-root), or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_fractions(self) -> Self:
        for fraction in self.label_fractions:
            if not 0 < fraction <= 1:
                raise ValueError(f"label_fractions: {fraction} is no share: give numbers above 0 and up to 1")
        if len(set(self.label_fractions)) != len(self.label_fractions):
            raise ValueError("label_fractions: a share stands twice: list each one once")
        return self

    def generated(self) -> GeneratedConfig | None:
        """Return which trees are drawn; None where they are read."""
        if self.data.data_root is not None:
            return None
        return GeneratedConfig(**self.data.model_dump(include=set(GeneratedConfig.model_fields)))
