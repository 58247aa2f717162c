"""The sections of the configuration, the kinds of stages, and what each reads of them: no library but pydantic.

They stand apart from the code that follows them, so that a plan is made without loading torch.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from kdgat.base import Config
from kdgat.base.configuration import ExecutionOnly
from kdgat.run import EVALUATION
from kdgat.run.kinds import StageKind, StageKinds
from kdgat.training import TrainingConfig
from kdgat.trees.names import FINETUNE, GIN, PREPARE, PRETRAIN, SCRATCH
from kdgat.trees.reading.settings import ReadSettings

FEATURE_VERSION: Final = 1  # rises when the same tree gives another graph
LARGEST_COUNT: Final = 10_000_000  # trees of a split; places of the next split begin there

EncoderKind = Literal["gtmp", "sgmp"]
SyntheticKind = Literal["neurons", "rivers"]


class EncoderConfig(Config):
    """Choose the kind of paths, width and depth of an encoder."""

    kind: EncoderKind = Field("gtmp", description="gtmp = branches of the tree; sgmp = paths in every direction")
    hidden: int = Field(64, ge=2, description="numbers in the state of a node")
    interactions: int = Field(3, ge=1, description="rounds of messages")
    num_distances: int = Field(50, ge=2, description="centres of distances, on a logarithmic scale")
    distance_range: tuple[float, float] = Field(
        (0.05, 20.0), description="of the centres, in median edges of the training trees"
    )
    # Keep states between rounds alone, and compute the rest again backwards: the same weights.
    recompute: Annotated[bool, ExecutionOnly] = Field(
        False,
        description=(
            "true: keep states between rounds alone and compute the rest again backwards; less memory, more time, "
            "same weights"
        ),
    )

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        low, high = self.distance_range
        if not 0 < low < high:
            raise ValueError(f"distance_range is [{low}, {high}]: give two numbers above 0, the smaller one first")
        return self


class GrowthConfig(Config):
    """Set what growth predicts of the children of a node, and how the parts are weighed."""

    num_lengths: int = Field(
        24,
        ge=2,
        description=(
            "thresholds of the lengths of edges, evenly over the training trees' 0.5 % to 99.5 % on a logarithmic scale"
        ),
    )
    num_angles: int = Field(
        18, ge=2, description="thresholds of the angle between an edge and the one before, on [0, pi]"
    )
    num_radii: int = Field(24, ge=2, description="thresholds of a child's radius by its parent's")
    components: int = Field(4, ge=1, description="of the mixtures that are predicted")
    angle_weight: float = Field(1.0, ge=0, description="of the loss of angles, where that of lengths is 1")
    radius_weight: float = Field(1.0, ge=0, description="of the loss of radii")
    count_weight: float = Field(
        0.3, ge=0, description="of the cross entropy of the number of children (0, 1, 2, 3 and more)"
    )


class OrderConfig(Config):
    """Set how ancestors and descendants are told apart."""

    width: int = Field(64, ge=1, description="numbers of a node's place in the order")
    margin: float = Field(
        1.0, gt=0, description="energy that pairs shall have at least that are not ancestor and descendant"
    )
    weight: float = Field(1.0, ge=0, description="of this loss beside that of growth; 0: none")
    warmup_epochs: int = Field(3, ge=0, description="in which the weight rises from 0")


class PathBudgetConfig(Config):
    """Set how batches are filled."""

    max_paths: int | None = Field(
        32_768,
        ge=1,
        description="paths of a batch, of all kinds that the encoder reads; null: as training.batch_by says",
    )


class GeneratedConfig(Config):
    """State which trees are drawn."""

    kind: SyntheticKind = Field("neurons", description="of drawn trees")
    classes: tuple[str, ...] | None = Field(None, description="of drawn trees; null: all of the kind")
    seed: int = Field(0, ge=0, lt=10**9, description="of the drawn trees; all training seeds share them")
    train: int = Field(600, ge=1, lt=LARGEST_COUNT, description="drawn trees to train on")
    validation: int = Field(150, ge=1, lt=LARGEST_COUNT, description="drawn trees that choose the best epoch")
    test: int = Field(300, ge=1, lt=LARGEST_COUNT, description="drawn trees to measure on, which nothing else sees")


class FileConfig(Config):
    """State what a table of labels says of one file."""

    name: str
    label: str | None = None
    target: float | None = None
    split: str | None = None
    group: str | None = None


class PrepareConfig(Config):
    """Configure `prepare`."""

    contract: bool = False
    reading: ReadSettings = ReadSettings()
    files: tuple[FileConfig, ...] = ()  # in the order of the inputs; none where trees are drawn
    for_task: bool = False  # whether labels are used: some must then be in each split
    feature_version: int = FEATURE_VERSION  # in the identity of the stage: other features are other stores
    generate: GeneratedConfig | None = None


class HeadConfig(Config):
    """Set how a class or a number is learned from a tree's embedding."""

    dropout: float = Field(0.1, ge=0, lt=1, description="while training")
    least_batches: int = Field(20, ge=1, description="of an epoch: with few labels it passes over them several times")


class PretrainStageConfig(Config):
    """Configure `pretrain`."""

    encoder: EncoderConfig = EncoderConfig()
    growth: GrowthConfig = GrowthConfig()
    order: OrderConfig = OrderConfig()
    batches: PathBudgetConfig = PathBudgetConfig()
    training: TrainingConfig = TrainingConfig()


class FinetuneStageConfig(Config):
    """Configure `finetune`, `scratch` and `gin`: one model per share of the labels, one after the other."""

    encoder: EncoderConfig = EncoderConfig()
    head: HeadConfig = HeadConfig()
    batches: PathBudgetConfig = PathBudgetConfig()
    label_fractions: tuple[float, ...] = Field((1.0,), min_length=1)  # of the training trees whose labels are used
    training: TrainingConfig = TrainingConfig()


class EvaluationConfig(Config):
    """State what is measured."""

    neighbours: int = Field(20, ge=1, description="trees that kNN asks")
    repeats: int = Field(5, ge=1, description="draws of the labels that a probe gets, where it gets a part of them")
    optimum_draws: int = Field(
        128,
        ge=16,
        description="sets of children drawn per node, for the optimum of growth where the law of the trees is known",
    )
    pair_draws: int = Field(2, ge=1, description="of pairs with each node, for the AUC of the order")


class EvaluationStageConfig(Config):
    """Configure `evaluation`."""

    evaluation: EvaluationConfig = EvaluationConfig()
    batches: PathBudgetConfig = PathBudgetConfig()
    label_fractions: tuple[float, ...] = ()
    generate: GeneratedConfig | None = None  # trees whose law is known: the optimum is, too


KINDS: Final = StageKinds(
    (
        StageKind(
            PREPARE,
            PrepareConfig,
            "kdgat.trees.training.preparation:run_prepare",
            trains=False,
            parts="kdgat.trees.training.preparation:preparation_parts",
        ),
        StageKind(PRETRAIN, PretrainStageConfig, "kdgat.trees.stages:run_pretrain", title="Pretraining"),
        StageKind(FINETUNE, FinetuneStageConfig, "kdgat.trees.stages:run_finetune", title="Fine-tuned"),
        StageKind(SCRATCH, FinetuneStageConfig, "kdgat.trees.stages:run_finetune", title="From scratch"),
        StageKind(GIN, FinetuneStageConfig, "kdgat.trees.stages:run_finetune", title="GIN", code_version=2),
        StageKind(
            EVALUATION,
            EvaluationStageConfig,
            "kdgat.trees.evaluation.stage:run_evaluation",
            trains=False,
            code_version=2,
        ),
    )
)


def read_encoder(encoder: EncoderConfig) -> dict[str, Any]:
    """Return what weights depend on, as plain data: how they were computed backwards is no part of it."""
    return encoder.model_dump(mode="json", exclude={"recompute"})
