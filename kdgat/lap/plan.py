"""The stages of a LAP training run and what each needs from the others: a pure function of the configuration.

    prepare-512 -> small_512_only -> small_1024_only -> mid_1536 -> ... -> evaluation
                   prepare-1024 --------^   prepare-1536 --^

Preparations are shared by all seeds. Each training stage starts from the weights of the one before; stages of one of
`config.jobs` are one planned stage, which trains them one after the other in one process.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from kdgat.lap.config import LapConfig
from kdgat.lap.names import PREPARE, START, TEST, TEST_PREFIX, TRAIN, VALIDATION, WEIGHTS_PREFIX
from kdgat.lap.sections import (
    FEATURE_VERSION,
    EvaluationStageConfig,
    FitConfig,
    GeneratedConfig,
    PrepareConfig,
    TrainingStageConfig,
)
from kdgat.run import EVALUATION, PlannedStage
from kdgat.run.kinds import StageKind, StageKinds
from kdgat.run.plan import InputReference

ALL_SIZES: Final = "all"
GROUP_WORD: Final = "_and_"

TRAINING: Final = "training"  # the kind of every stage that is called after stages of the progression
KINDS: Final = StageKinds(
    (
        StageKind(
            PREPARE,
            PrepareConfig,
            "kdgat.lap.training.preparation:run_prepare",
            trains=False,
            code_version=2,
            parts="kdgat.lap.training.preparation:preparation_parts",
        ),
        StageKind(TRAINING, TrainingStageConfig, "kdgat.lap.stages:run_training"),
        StageKind(EVALUATION, EvaluationStageConfig, "kdgat.lap.evaluation.stage:run_evaluation", trains=False),
    )
)


def plan_lap(config: LapConfig) -> list[PlannedStage]:
    """List the stages of a run in an order in which they can be executed."""
    stages = [_prepare(config, name) for name in config.chosen()]
    for seed in config.seeds:
        stages += [*_training_stages(config, seed), _evaluation(config, seed)]
    return stages


def prepare_name(size: int) -> str:
    """Name the preparation of one size in the plan."""
    return f"{PREPARE}-{size}"


def group_name(group: Sequence[str]) -> str:
    """Name the stage that trains these stages of the progression in one process."""
    return GROUP_WORD.join(group)


def planned_name(group: Sequence[str], seed: int) -> str:
    """Name a training stage in the plan."""
    return f"{group_name(group)}-seed{seed}"


def weights_artifact(stage: str) -> str:
    """Name the artifact that holds the weights of one stage of the progression."""
    return f"{WEIGHTS_PREFIX}{stage}"


def members(planned: PlannedStage) -> list[str]:
    """Return the stages of the progression that a planned stage trains; none for the other kinds."""
    return [fit["name"] for fit in planned.config.get("fits", [])]


def kind_of(stage: str) -> StageKind:
    """Return the kind of a stage by its name; what is neither preparation nor evaluation trains."""
    return KINDS[stage if stage in (PREPARE, EVALUATION) else TRAINING]


def _prepare(config: LapConfig, name: str) -> PlannedStage:
    stage, data = config.progression[name], config.data
    sections: dict[str, Any] = {
        "size": stage.size,
        "graph": config.graph,
        "feature_version": FEATURE_VERSION,
        "generate": None,
    }
    if data.source is None:  # numbers of instances matter only where they are generated
        counts = stage.model_dump(exclude={"size"})
        sections["generate"] = GeneratedConfig(**data.model_dump(exclude={"source"}), **counts)
    return KINDS[PREPARE].plan(prepare_name(stage.size), str(stage.size), data.seed, sections)


def _training_stages(config: LapConfig, seed: int) -> list[PlannedStage]:
    groups = config.groups()
    group_of = {name: group for group in groups for name in group}
    stages = []
    for group in groups:
        sizes = {name: config.progression[name].size for name in group}
        inputs = {
            f"{store}-{name}": InputReference(prepare_name(size), store)
            for name, size in sizes.items()
            for store in (TRAIN, VALIDATION)
        }
        before = config.predecessor(group[0])
        if before in group_of:
            inputs[START] = InputReference(planned_name(group_of[before], seed), weights_artifact(before))
        fits = [FitConfig(name=name, size=size, training=config.training_for(name)) for name, size in sizes.items()]
        sections = {"fits": fits, "graph": config.graph, "model": config.model, "loss": config.loss}
        scale = "_".join(map(str, sizes.values()))
        planned = KINDS[TRAINING].plan(planned_name(group, seed), scale, seed, sections, inputs)
        stages.append(replace(planned, stage=group_name(group)))
    return stages


def _evaluation(config: LapConfig, seed: int) -> PlannedStage:
    chosen = config.chosen()
    sizes = [config.progression[name].size for name in chosen]
    inputs = {f"{TEST_PREFIX}{size}": InputReference(prepare_name(size), TEST) for size in sizes}
    for group in config.groups():
        for name in group:
            inputs[weights_artifact(name)] = InputReference(planned_name(group, seed), weights_artifact(name))
    sections = {"evaluation": config.evaluation, "stages": chosen}
    return KINDS[EVALUATION].plan(f"{EVALUATION}-seed{seed}", ALL_SIZES, seed, sections, inputs)
