"""The stages of a LAP training run and what each needs from the others: a pure function of the configuration.

    prepare-512 -> small_512_only -> small_1024_only -> mid_1536 -> ... -> evaluation
                   prepare-1024 --------^   prepare-1536 --^

Preparations are shared by all seeds. Each training stage starts from the weights of the one before; stages of one of
`config.jobs` are one planned stage, which trains them one after the other in one process.
"""

from collections.abc import Sequence
from typing import Final

from kdgat.lap.config import LapConfig, prepare_sections, stage_sections
from kdgat.lap.names import EVALUATION, PREPARE, START, TEST, TEST_PREFIX, TRAIN, VALIDATION, WEIGHTS_PREFIX
from kdgat.run.plan import InputReference, PlannedStage

ALL_SIZES: Final = "all"
GROUP_WORD: Final = "_and_"


def plan_lap(config: LapConfig) -> list[PlannedStage]:
    """List the stages of a run in an order in which they can be executed.

    Raises:
        StageOrderError: if a chosen stage has nothing to start from.
    """
    config.check_order()
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


def _prepare(config: LapConfig, name: str) -> PlannedStage:
    stage = config.progression[name]
    return PlannedStage(
        name=prepare_name(stage.size),
        stage=PREPARE,
        scale=str(stage.size),
        seed=config.data.seed,
        config=prepare_sections(config, stage),
    )


def _training_stages(config: LapConfig, seed: int) -> list[PlannedStage]:
    groups = config.groups()
    group_of = {name: group for group in groups for name in group}
    stages = []
    for group in groups:
        inputs = {
            f"{store}-{name}": InputReference(prepare_name(config.progression[name].size), store)
            for name in group
            for store in (TRAIN, VALIDATION)
        }
        before = config.predecessor(group[0])
        if before in group_of:
            inputs[START] = InputReference(planned_name(group_of[before], seed), weights_artifact(before))
        stages.append(
            PlannedStage(
                name=planned_name(group, seed),
                stage=group_name(group),
                scale="_".join(str(config.progression[name].size) for name in group),
                seed=seed,
                config=stage_sections(config, group),
                inputs=inputs,
            )
        )
    return stages


def _evaluation(config: LapConfig, seed: int) -> PlannedStage:
    chosen = config.chosen()
    sizes = [config.progression[name].size for name in chosen]
    inputs = {f"{TEST_PREFIX}{size}": InputReference(prepare_name(size), TEST) for size in sizes}
    for group in config.groups():
        for name in group:
            inputs[weights_artifact(name)] = InputReference(planned_name(group, seed), weights_artifact(name))
    return PlannedStage(
        name=f"{EVALUATION}-seed{seed}",
        stage=EVALUATION,
        scale=ALL_SIZES,
        seed=seed,
        config={
            "evaluation": config.evaluation.model_dump(mode="json"),
            "stages": [{"name": name, "size": size} for name, size in zip(chosen, sizes, strict=True)],
        },
        inputs=inputs,
    )
