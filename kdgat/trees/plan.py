"""The stages of a run on trees and what each needs of the others: a pure function of the configuration.

    prepare -> pretrain-seed0 -> finetune-5pct-seed0, finetune-100pct-seed0 -> evaluation-seed0
            -> scratch-5pct-seed0, scratch-100pct-seed0, gin-... ---------------^

Without labels there is no fine-tuning and nothing to compare it with. With `start_from` nothing is pretrained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kdgat.run.finished import EVALUATION, WEIGHTS
from kdgat.run.kinds import StageKind, StageKinds
from kdgat.run.plan import InputReference, PlannedStage
from kdgat.trees.names import FINETUNE, GIN, PREPARE, PRETRAIN, SCRATCH, START, TEST, TRAIN, VALIDATION
from kdgat.trees.sections import (
    FEATURE_VERSION,
    EvaluationStageConfig,
    FinetuneStageConfig,
    PrepareConfig,
    PretrainStageConfig,
)

if TYPE_CHECKING:
    from kdgat.trees.config import TreesConfig

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
        StageKind(GIN, FinetuneStageConfig, "kdgat.trees.stages:run_finetune", title="GIN"),
        StageKind(EVALUATION, EvaluationStageConfig, "kdgat.trees.evaluation.stage:run_evaluation", trains=False),
    )
)
_ALL: Final = "all"
_STORES: Final = {name: InputReference(PREPARE, name) for name in (TRAIN, VALIDATION, TEST)}
_TRAINING_STORES: Final = {name: _STORES[name] for name in (TRAIN, VALIDATION)}


def scale_of(fraction: float) -> str:
    """Name a share of labels: `5pct`."""
    return f"{100 * fraction:g}pct"


def plan_trees(config: TreesConfig, *, has_labels: bool) -> list[PlannedStage]:
    """List the stages of a run in an order in which they can be executed."""
    generated = config.generated()
    sections = {
        "contract": config.data.contract,
        "max_bad_fraction": config.data.max_bad_fraction,
        "feature_version": FEATURE_VERSION,
        "generate": generated,
        "target": config.data.target,
    }
    plan = [KINDS[PREPARE].plan(PREPARE, _ALL, config.data.seed, sections)]
    for seed in config.seeds:
        plan += _of_seed(config, seed, config.label_fractions if has_labels else ())
    return plan


def _of_seed(config: TreesConfig, seed: int, fractions: tuple[float, ...]) -> list[PlannedStage]:
    common = {"encoder": config.encoder, "batches": config.batches}
    stages: list[PlannedStage] = []
    measured: dict[str, InputReference] = {}
    start: Mapping[str, InputReference] = {}
    if config.start_from is None:
        pretrain = f"{PRETRAIN}-seed{seed}"
        sections = {
            **common,
            "growth": config.growth,
            "order": config.order,
            "training": config.training_for(PRETRAIN),
        }
        stages.append(KINDS[PRETRAIN].plan(pretrain, _ALL, seed, sections, _TRAINING_STORES))
        start = {START: InputReference(pretrain, WEIGHTS)}
    for fraction in fractions:
        for kind in (FINETUNE, SCRATCH, GIN):
            name = f"{kind}-{scale_of(fraction)}"
            training = config.training_for(kind)
            sections = {**common, "head": config.head, "label_fraction": fraction, "training": training}
            inputs = {**_TRAINING_STORES, **(start if kind == FINETUNE else {})}
            stages.append(KINDS[kind].plan(f"{name}-seed{seed}", scale_of(fraction), seed, sections, inputs))
            measured[f"{WEIGHTS}-{name}"] = InputReference(f"{name}-seed{seed}", WEIGHTS)
    sections = {"evaluation": config.evaluation, "growth": config.growth, "batches": config.batches}
    inputs = {**_STORES, **start, **measured}
    stages.append(KINDS[EVALUATION].plan(f"{EVALUATION}-seed{seed}", _ALL, seed, sections, inputs))
    return stages
