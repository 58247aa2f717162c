"""The sections of the configuration, and what each stage reads of them: plain settings, no library but pydantic.

They stand apart from the code that follows them, so that a plan is made without loading torch.
"""

from typing import Final, Literal, get_args

from pydantic import Field

from kdgat.base import Config
from kdgat.training import TrainingConfig

FEATURE_VERSION = 2  # rises when the same instance gives another graph
LARGEST_COUNT: Final = 1_000_000  # instances of a split; seeds of the next split begin there

Method = Literal[
    "scipy",
    "lapx",
    "column or row minima",
    "column minima",
    "row minima",
    "Sinkhorn",
    "neighbour sweeps",
    "untrained network",
    "trained",
    "oracle",
]
METHODS: Final[tuple[Method, ...]] = get_args(Method)
Solver = Literal["core", "dense", "auto"]


class GraphConfig(Config):
    """State how many neighbours a row and a column have."""

    row_neighbours: int = Field(16, ge=2, description="cheapest columns of each row")
    column_neighbours: int = Field(16, ge=2, description="cheapest rows of each column")
    witnesses: int = Field(
        16, ge=0, description="of each row: entries that optimal duals leave the least slack; only the loss sees them"
    )


class DualNetworkConfig(Config):
    """Choose the number of sweeps and rounds, and the width of the network."""

    sweeps: int = Field(22, ge=0, description="of Sinkhorn's iteration over the nearest neighbours, before the network")
    rounds: int = Field(4, ge=1, description="of the network: rows, then columns")
    hidden: int = Field(8, ge=1, description="numbers in the state of a row or column")
    heads: int = Field(2, ge=1, description="soft minima of different temperature")
    width: int = Field(16, ge=1, description="hidden layer that updates a state")
    # Where the parameters of the sweeps start.
    first_temperature: float = Field(
        2.0, gt=0.0, description="in the first sweep, in units of a row's spread, before training"
    )
    last_temperature: float = Field(0.2, gt=0.0, description="in the last sweep, before training")
    relaxation: float = Field(
        1.87,
        gt=0.0,
        lt=2.0,
        description=(
            "of all sweeps but the first, before training: 1 is plain Sinkhorn; towards 2 faster, then unstable"
        ),
    )


class ModelConfig(Config):
    """Choose a network."""

    kind: Literal["dual"] = Field("dual", description="dual: learned steps of Sinkhorn's iteration and of an auction")
    dual: DualNetworkConfig = Field(DualNetworkConfig(), description="the network of kind `dual`")


class WarmStartLossConfig(Config):
    """Weigh the parts of the loss."""

    huber_weight: float = Field(0.1, ge=0.0, description="of the distance to the solver's own duals")
    round_discount: float = Field(
        0.5, ge=0.0, le=1.0, description="of each round against the next one; 0: only the last round counts"
    )


class EvaluationConfig(Config):
    """What is measured on the test instances; every instance of the test stores is checked, measured or not."""

    methods: tuple[Method, ...] = Field(METHODS, min_length=1, description="what is compared")
    solvers: tuple[Solver, ...] = Field(
        ("core",),
        min_length=1,
        description="how our solver searches: on a sparse core, on all entries, as `solve` chooses, or several in turn",
    )
    families: tuple[str, ...] | None = Field(None, description="null: all families of the test stores")
    sizes: tuple[int, ...] | None = Field(None, description="null: the sizes of all test stores")
    every_stage: bool = Field(True, description="measure the weights of every training stage, not only of the last")
    measured_instances: int = Field(5, ge=1, description="per family and size, by every method")
    check_all: bool = Field(True, description="solve and check the other test instances too, by the last weights")
    repeats: int = Field(5, ge=1, description="timed calls of every method on every measured instance")
    warm_ups: int = Field(1, ge=0, description="calls before them")
    patience_s: float = Field(
        2.0, gt=0, description="a method that took this long on an instance is not repeated there"
    )


class GeneratedConfig(Config):
    """State which instances are generated."""

    families: tuple[str, ...] = Field(min_length=1)
    seed: int = Field(ge=0)
    storage: Literal["seeded", "dense"] = "seeded"  # of the test instances
    train: int = Field(ge=1, lt=LARGEST_COUNT)
    validation: int = Field(ge=1, lt=LARGEST_COUNT)
    test: int = Field(ge=1, lt=LARGEST_COUNT)


class PrepareConfig(Config):
    """Configure `prepare`."""

    size: int = Field(ge=2)
    graph: GraphConfig = GraphConfig()
    feature_version: int = FEATURE_VERSION  # in the identity of the stage: other features are other stores
    generate: GeneratedConfig | None = None  # null: the inputs are files of instances


class FitConfig(Config):
    """Configure one stage of the progression."""

    name: str
    size: int = Field(ge=2)
    training: TrainingConfig = TrainingConfig()


class TrainingStageConfig(Config):
    """Configure the training stages of one process."""

    fits: tuple[FitConfig, ...] = Field(min_length=1)
    graph: GraphConfig = GraphConfig()
    model: ModelConfig = ModelConfig()
    loss: WarmStartLossConfig = WarmStartLossConfig()


class EvaluationStageConfig(Config):
    """Configure `evaluation`."""

    evaluation: EvaluationConfig = EvaluationConfig()
    stages: tuple[str, ...] = ()  # of the progression, in the order of training: the last one's weights are the model
