"""The configuration of a LAP training run: every section in one frozen model, presets, overrides.

The sections are in `kdgat.lap.sections`; this module puts them together and says which stage reads which.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kdgat.cluster.estimate import DEFAULT_KEY
from kdgat.cluster.resources import ResourceRequest
from kdgat.lap.errors import LapError
from kdgat.lap.families import FAMILIES
from kdgat.lap.names import EVALUATION, PREPARE
from kdgat.lap.sections import (
    FEATURE_VERSION,
    LARGEST_COUNT,
    EvaluationConfig,
    GraphConfig,
    ModelConfig,
    WarmStartLossConfig,
    read_sections,
)
from kdgat.run import presets
from kdgat.stage.configuration import Config, unknown_key_text, validate_config
from kdgat.training.config import TrainingConfig

PRESET_PACKAGE: Final = "kdgat.lap"
PRESETS: Final = ("quick", "full", "tutorial")
NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*$"
# A batch is filled up to a number of edges: that, and no table by size, is what its memory goes by.
DEFAULT_TRAINING: Final[dict[str, Any]] = {"batch_by": "edges", "max_edges": 196_608}


class StageOrderError(LapError):
    """Stages that do not follow each other; the text names the stage and what to add."""


class ProgressiveStage(Config):
    """Say which instances one stage of the progression is made of."""

    size: int = Field(ge=2, description="rows and columns of its instances")
    train: int = Field(ge=1, lt=LARGEST_COUNT, description="instances, shared evenly by the families")
    validation: int = Field(ge=1, lt=LARGEST_COUNT)
    test: int = Field(ge=1, lt=LARGEST_COUNT)


DEFAULT_PROGRESSION: Final[dict[str, dict[str, int]]] = {
    "small_512_only": {"size": 512, "train": 1200, "validation": 120, "test": 48},
    "small_1024_only": {"size": 1024, "train": 900, "validation": 90, "test": 48},
    "mid_1536": {"size": 1536, "train": 480, "validation": 48, "test": 24},
    "mid_2048": {"size": 2048, "train": 144, "validation": 24, "test": 24},
    "mid_3072": {"size": 3072, "train": 88, "validation": 16, "test": 16},
    "large_4096": {"size": 4096, "train": 30, "validation": 8, "test": 8},
}


class DataConfig(Config):
    """Say where instances come from: generated, or read from files."""

    families: tuple[str, ...] = Field(
        ("uniform", "sparse", "metric", "clustered", "low_rank", "noisy_linear", "tracking", "mc64"), min_length=1
    )
    seed: int = Field(0, ge=0, lt=10**9)
    storage: Literal["seeded", "dense"] = "seeded"
    source: str | None = None

    @field_validator("families")
    @classmethod
    def _check_families(cls, families: tuple[str, ...]) -> tuple[str, ...]:
        for family in families:
            if family not in FAMILIES:
                raise ValueError(unknown_key_text(family, list(FAMILIES)))
        if len(set(families)) != len(families):
            raise ValueError("a family stands twice: list each family once")
        return families


class LapConfig(Config):
    """Hold everything that a LAP training run depends on."""

    preset: str | None = Field(None, description="which one this was made from: noted in the results, read by no stage")
    data: DataConfig = DataConfig()
    progression: dict[str, ProgressiveStage] = Field(
        default={name: ProgressiveStage(**stage) for name, stage in DEFAULT_PROGRESSION.items()},
        min_length=1,
        description="every training stage, in the order in which each starts from the weights of the one before",
    )
    stages: tuple[str, ...] | None = Field(None, min_length=1, description="which of them run; null = all")
    jobs: tuple[tuple[str, ...], ...] = Field((), description="groups of consecutive stages that share a process")
    graph: GraphConfig = GraphConfig()
    model: ModelConfig = ModelConfig()
    loss: WarmStartLossConfig = WarmStartLossConfig()
    training: TrainingConfig = TrainingConfig(**DEFAULT_TRAINING)
    training_of: dict[str, dict[str, Any]] = Field(
        default={}, description="per stage of the progression: what differs from `training`"
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    start_from: str | None = Field(
        None, description="a run, or weights, that a stage starts from whose predecessor is not chosen"
    )
    resources: dict[str, ResourceRequest] = Field(
        default={DEFAULT_KEY: ResourceRequest()},
        description="per stage, or default: what its job asks for on a cluster; read by no stage",
    )

    @field_validator("training", mode="before")
    @classmethod
    def _fill_training(cls, training: Any) -> Any:
        return {**DEFAULT_TRAINING, **training} if isinstance(training, Mapping) else training

    @field_validator("seeds")
    @classmethod
    def _refuse_repeated_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed stands twice: list each seed once")
        return seeds

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
    def _check_stage_names(self) -> Self:
        known = list(self.progression)
        named = {
            "stages": (self.stages or (), known),
            "jobs": ([name for job in self.jobs for name in job], known),
            "training_of": (self.training_of, known),
            "resources": (self.resources, [*known, PREPARE, EVALUATION, DEFAULT_KEY]),
        }
        for key, (names, accepted) in named.items():
            for name in names:
                if name not in accepted:
                    text = f"{key}: {unknown_key_text(name, accepted)}"
                    raise PydanticCustomError("unknown_key", "{text}", {"text": text})
        for name in self.training_of:
            self.training_for(name)
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
        """Return the names of the training stages that run, in the order of the progression."""
        return [name for name in self.progression if self.stages is None or name in self.stages]

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

    def training_for(self, stage: str) -> TrainingConfig:
        """Return the training settings of one stage: the common ones with its differences."""
        return validate_config(TrainingConfig, {**self.training.model_dump(), **self.training_of.get(stage, {})})

    def check_order(self) -> None:
        """Refuse a stage that could not start from what it should start from.

        Raises:
            StageOrderError: naming the stage, and the one before it.
        """
        if self.start_from is not None:
            return
        chosen = self.chosen()
        for name in chosen:
            before = self.predecessor(name)
            if before is not None and before not in chosen:
                raise StageOrderError(
                    f"stages: {name} starts from the weights of {before}, which is not chosen: add {before} (what has "
                    "finished in the same --out is not trained again), or name a run or weights to start from by "
                    "-O start_from=PATH"
                )


def make_config(
    preset: str,
    overrides: Sequence[str] = (),
    *,
    source: str | None = None,
    stages: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> LapConfig:
    """Build a configuration from a preset, what the command line names, and overrides, in this order.

    Raises:
        ConfigurationError: naming key, value and fix.
    """
    said: dict[str, Any] = {}
    if source is not None:
        said["data"] = {"source": source}
    if seeds:
        said["seeds"] = list(seeds)
    # Together with the overrides, which may give the progression other stages than the preset has.
    chosen = [f"stages={json.dumps(list(stages))}"] if stages else []
    return fill_preset(preset, said, [*chosen, *overrides])


def fill_preset(preset: str, said: Mapping[str, Any], overrides: Sequence[str] = ()) -> LapConfig:
    """Build a configuration from what somebody said, a preset for the rest, and overrides; see `kdgat.run.presets`."""
    return presets.fill_preset(LapConfig, PRESET_PACKAGE, preset, said, overrides)


def complete_config(config: LapConfig, preset: str | None = None, overrides: Sequence[str] = ()) -> LapConfig:
    """Return a configuration whose unset keys are those of a preset, with overrides on top; see `kdgat.run.presets`."""
    return presets.complete(config, PRESET_PACKAGE, preset, overrides)


def load_config(content: Mapping[str, Any]) -> LapConfig:
    """Read a configuration from plain data, for instance out of `run.json`."""
    return validate_config(LapConfig, content)


def stage_sections(config: LapConfig, group: Sequence[str]) -> dict[str, Any]:
    """Return what the training stages of one process read, as plain data: only that determines their identity."""
    fits = [
        {
            "name": name,
            "size": config.progression[name].size,
            "training": config.training_for(name).model_dump(mode="json"),
        }
        for name in group
    ]
    return {
        "fits": fits,
        "graph": config.graph.model_dump(mode="json"),
        "model": read_sections(config.model),
        "loss": config.loss.model_dump(mode="json"),
    }


def prepare_sections(config: LapConfig, stage: ProgressiveStage) -> dict[str, Any]:
    """Return what the preparation of one size reads; numbers of instances only where they are generated."""
    sections: dict[str, Any] = {
        "size": stage.size,
        "graph": config.graph.model_dump(mode="json"),
        "feature_version": FEATURE_VERSION,
    }
    if config.data.source is None:
        sections["generate"] = {
            "families": list(config.data.families),
            "seed": config.data.seed,
            "storage": config.data.storage,
            "train": stage.train,
            "validation": stage.validation,
            "test": stage.test,
        }
    return sections


def with_two_in_one(config: LapConfig) -> LapConfig:
    """Return a configuration whose first two stages share a process, as the published plan for 8-hour jobs has it.

    Raises:
        StageOrderError: if they do not follow each other, or there is only one.
    """
    first = config.chosen()[:2]
    if len(first) < 2 or config.predecessor(first[1]) != first[0]:
        raise StageOrderError(
            f"two stages in one job: {', '.join(first)} are not two consecutive stages of "
            f"{', '.join(config.progression)}: choose others by --stages"
        )
    others = tuple(job for job in config.jobs if not set(job) & set(first))
    return config.model_copy(update={"jobs": (tuple(first), *others)})
