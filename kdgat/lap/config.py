"""The configuration of a LAP training run: every section in one frozen model, and the order of its stages."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from kdgat.base import Config, UserError, unknown_key_text
from kdgat.cluster.request import DEFAULT_KEY
from kdgat.lap.instances.distributions import DISTRIBUTIONS
from kdgat.lap.names import PREPARE
from kdgat.lap.sections import LARGEST_COUNT, EvaluationConfig, GraphConfig, ModelConfig, WarmStartLossConfig
from kdgat.run import EVALUATION, RunConfig
from kdgat.run.config import refuse_unknown
from kdgat.training import TrainingConfig

NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*$"
# A batch is filled up to a number of edges: that, and no table by size, is what its memory goes by.
DEFAULT_TRAINING: Final[dict[str, Any]] = {"batch_by": "edges", "max_edges": 196_608}
# Not those of independent costs (uniform, sparse, tie): even optimal duals do not make the default search faster there.
LEARNABLE: Final = ("metric", "low_rank", "noisy_linear", "clustered", "tracking", "mc64")


class ProgressiveStage(Config):
    """State which instances one stage of the progression is made of."""

    size: int = Field(ge=2, description="rows and columns of its instances")
    train: int = Field(ge=1, lt=LARGEST_COUNT, description="instances, shared evenly by the families")
    validation: int = Field(ge=1, lt=LARGEST_COUNT, description="instances that choose the best epoch")
    test: int = Field(ge=1, lt=LARGEST_COUNT, description="instances to measure on")


DEFAULT_PROGRESSION: Final[dict[str, dict[str, int]]] = {
    "small_512_only": {"size": 512, "train": 1200, "validation": 120, "test": 48},
    "small_1024_only": {"size": 1024, "train": 900, "validation": 90, "test": 48},
    "mid_1536": {"size": 1536, "train": 480, "validation": 48, "test": 24},
    "mid_2048": {"size": 2048, "train": 144, "validation": 24, "test": 24},
    "mid_3072": {"size": 3072, "train": 88, "validation": 16, "test": 16},
    "large_4096": {"size": 4096, "train": 30, "validation": 8, "test": 8},
}


class DataConfig(Config):
    """State where instances come from: generated, or read from files."""

    families: tuple[str, ...] = Field(
        LEARNABLE, min_length=1, description="that are generated, in turn; also uniform, sparse, tie, machol_wien"
    )
    seed: int = Field(0, ge=0, lt=10**9, description="of the generated instances; all training seeds share them")
    storage: Literal["seeded", "dense"] = Field(
        "seeded",
        description=(
            "of generated test instances: seeded (drawn again when read, small), or dense (with their matrices)"
        ),
    )
    source: str | None = Field(None, description="folder that `kdgat lap bucket` wrote; null: generate; --data")

    @field_validator("families")
    @classmethod
    def _check_families(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        for family in families:
            if family not in DISTRIBUTIONS:
                raise ValueError(unknown_key_text(family, list(DISTRIBUTIONS)))
        if len(set(families)) != len(families):
            raise ValueError("a family stands twice: list each family once")
        return families


class LapConfig(RunConfig):
    """Hold everything that a LAP training run depends on.

    >>> LapConfig.from_preset("quick", {"seeds": [0, 1]}, ["training.max_epochs=2"]).chosen()
    ['small_512_only', 'small_1024_only', 'mid_2048']
    """

    preset_package: ClassVar[str] = "kdgat.lap"

    data: DataConfig = Field(DataConfig(), description="Which assignment problems are trained and tested on.")
    progression: dict[str, ProgressiveStage] = Field(
        default={name: ProgressiveStage(**stage) for name, stage in DEFAULT_PROGRESSION.items()},
        min_length=1,
        description="every training stage, in the order in which each starts from the weights of the one before",
    )
    stages: tuple[str, ...] | None = Field(
        None, min_length=1, description="which run, and what they start from; null: all"
    )
    jobs: tuple[tuple[str, ...], ...] = Field((), description="groups of consecutive stages that share a process")
    graph: GraphConfig = Field(
        GraphConfig(),
        description=(
            "The graph that the network sees of a matrix: nearest neighbours only, so that memory grows with the rows."
        ),
    )
    model: ModelConfig = Field(ModelConfig(), description="The network that predicts dual potentials.")
    loss: WarmStartLossConfig = Field(
        WarmStartLossConfig(),
        description="How far the predicted dual bound lies below the optimum, per row and in the unit of the instance.",
    )
    training: TrainingConfig = Field(
        TrainingConfig(**DEFAULT_TRAINING),
        description="Training of every stage; -O training.<key> on the command line also beats training_of.",
    )
    evaluation: EvaluationConfig = Field(
        EvaluationConfig(),
        description="What is measured on the test instances; every answer is checked against the label.",
    )
    start_from: str | None = Field(
        None, description="a run, or weights, that a stage starts from whose predecessor is not chosen"
    )

    @classmethod
    def from_data(cls, content: Mapping[str, Any]) -> Self:
        """Read it as every family does, without the networks that earlier versions wrote and did not train."""
        model = content.get("model")
        if isinstance(model, Mapping):
            content = {**content, "model": {key: model[key] for key in model if key not in ("dense", "rows")}}
        return super().from_data(content)

    def stage_names(self) -> Sequence[str]:
        """Name the stages of the progression, the preparations (as one) and the evaluation."""
        return [*self.progression, PREPARE, EVALUATION]

    def trained_stages(self) -> Sequence[str]:
        """Name the stages of the progression."""
        return list(self.progression)

    @field_validator("training", mode="before")
    @classmethod
    def _fill_training(cls, training: Any) -> Any:
        return {**DEFAULT_TRAINING, **training} if isinstance(training, Mapping) else training

    @field_validator("progression")
    @classmethod
    def _check_names(cls, progression: dict[str, ProgressiveStage]) -> dict[str, ProgressiveStage]:
        for name in progression:
            if not re.fullmatch(NAME_PATTERN, name) or name in (PREPARE, EVALUATION, DEFAULT_KEY):
                raise ValueError(f"{name!r} is no name for a stage: write small letters, digits and _, as mid_2048")
        sizes: dict[int, str] = {}
        for name, stage in progression.items():
            if stage.size in sizes:
                raise ValueError(f"{sizes[stage.size]} and {name} both have size {stage.size}: give each another one")
            sizes[stage.size] = name
        return progression

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        refuse_unknown("stages", self.stages or (), list(self.progression))
        refuse_unknown("jobs", [name for job in self.jobs for name in job], list(self.progression))
        if len(set(self.stages or ())) != len(self.stages or ()):
            raise ValueError("stages: a stage stands twice: list each one once")
        self._check_jobs()
        return self

    def _check_jobs(self) -> None:
        places = {name: place for place, name in enumerate(self.progression)}
        seen: set[str] = set()
        for job in self.jobs:
            for name in job:
                if name in seen:
                    raise ValueError(f"jobs: {name} stands twice: a stage runs in one job")
                seen.add(name)
            for before, after in itertools.pairwise(job):
                if places[after] != places[before] + 1:
                    raise ValueError(
                        f"jobs: {after} does not follow {before}: a job holds consecutive stages of "
                        f"{', '.join(self.progression)}"
                    )

    def chosen(self) -> list[str]:
        """Return the names of the training stages that run, in the order of the progression.

        Those that a chosen one starts from run, too, unless there are weights to start from.
        """
        names = list(self.progression)
        wanted = {name for name in names if self.stages is None or name in self.stages}
        last = max(names.index(name) for name in wanted)
        return [name for place, name in enumerate(names) if name in wanted or (not self.start_from and place < last)]

    def predecessor(self, name: str) -> str | None:
        """Return the stage of the progression whose weights a stage starts from; None for the first one."""
        names = list(self.progression)
        place = names.index(name)
        return names[place - 1] if place else None

    def groups(self) -> list[tuple[str, ...]]:
        """Return the chosen stages as the processes that they run in, in order; most hold one stage."""
        chosen = self.chosen()
        job_of = {name: place for place, job in enumerate(self.jobs) for name in job}
        groups: list[list[str]] = []
        for name in chosen:
            before = groups[-1][-1] if groups else None
            shares = before is not None and name in job_of and job_of.get(before) == job_of[name]
            if shares and self.predecessor(name) == before:
                groups[-1].append(name)
            else:
                groups.append([name])
        return [tuple(group) for group in groups]


def with_two_in_one(config: LapConfig) -> LapConfig:
    """Return a configuration whose first two stages share a process, as the published plan for 8-hour jobs has it.

    Raises:
        UserError: if they do not follow each other, or there is only one.
    """
    first = config.chosen()[:2]
    if len(first) < 2 or config.predecessor(first[1]) != first[0]:
        raise UserError(
            f"two stages in one job: {', '.join(first)} are not two consecutive stages of "
            f"{', '.join(config.progression)}: choose others by --stages"
        )
    others = tuple(job for job in config.jobs if not set(job) & set(first))
    return config.model_copy(update={"jobs": (tuple(first), *others)})
