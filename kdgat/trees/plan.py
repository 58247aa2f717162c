"""The stages of a run on trees and what each needs of the others: a pure function of the configuration.

    prepare -> pretrain-seed0 -> finetune-seed0 -> evaluation-seed0
            -> scratch-seed0, gin-seed0 ------------^

Without labels there is no fine-tuning and nothing to compare it with. With `start_from` nothing is pretrained.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kdgat.base import UserError
from kdgat.run import EVALUATION, WEIGHTS, PlannedStage
from kdgat.run.plan import InputReference, with_dependencies
from kdgat.trees.config import TreesConfig
from kdgat.trees.names import FINETUNE, GIN, PREPARE, PRETRAIN, SCRATCH, START, TEST, TRAIN, VALIDATION
from kdgat.trees.sections import FEATURE_VERSION, KINDS, FileConfig

_ALL: Final = "all"
_STORES: Final = {name: InputReference(PREPARE, name) for name in (TRAIN, VALIDATION, TEST)}
_TRAINING_STORES: Final = {name: _STORES[name] for name in (TRAIN, VALIDATION)}


def scale_of(fraction: float) -> str:
    """Name a share of labels: `5pct`."""
    return f"{100 * fraction:g}pct"


def plan_trees(config: TreesConfig, files: Sequence[FileConfig]) -> list[PlannedStage]:
    """List the stages of a run in an order in which they can be executed: those of `config.stages`, and what they need.

    An evaluation measures the models of the stages that are chosen; of all if it is chosen alone.

    Args:
        config: of the run.
        files: what is read; none where trees are drawn.
    """
    sections = {
        "contract": config.data.contract,
        "reading": config.data.reading,
        "files": files,
        "for_task": bool(config.label_fractions),
        "feature_version": FEATURE_VERSION,
        "generate": config.generated(),
    }
    has_labels = not files or any(file.label is not None or file.target is not None for file in files)
    plan = [KINDS[PREPARE].plan(PREPARE, _ALL, config.data.seed, sections)]
    for seed in config.seeds:
        plan += _of_seed(config, seed, config.label_fractions if has_labels else ())
    wanted = {stage.name for stage in plan if stage.stage in config.stages}
    if not wanted:
        why = (
            "start_from takes the place of the pretraining" if config.start_from else "no tree has a label that is used"
        )
        raise UserError(
            f"stages: there is no {', '.join(config.stages)} in this run, because {why}: choose others, or see "
            "data.labels and label_fractions"
        )
    return with_dependencies(plan, wanted)


def _of_seed(config: TreesConfig, seed: int, fractions: tuple[float, ...]) -> list[PlannedStage]:
    is_chosen = set(config.stages) & set(KINDS.trained) or set(KINDS.trained)
    kinds = [kind for kind in (FINETUNE, SCRATCH, GIN) if kind in is_chosen] if fractions else []
    common: dict[str, Any] = {"encoder": config.encoder, "batches": config.batches}
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
    for kind in kinds:
        sections = {
            **common,
            "head": config.head,
            "label_fractions": fractions,
            "training": config.training_for(kind),
        }
        inputs = {**_TRAINING_STORES, **(start if kind == FINETUNE else {})}
        stages.append(KINDS[kind].plan(f"{kind}-seed{seed}", _ALL, seed, sections, inputs))
        for scale in map(scale_of, fractions):
            measured[f"{WEIGHTS}-{kind}-{scale}"] = InputReference(f"{kind}-seed{seed}", f"{WEIGHTS}-{scale}")
    sections = {
        "evaluation": config.evaluation,
        "batches": config.batches,
        "label_fractions": fractions,
        "generate": config.generated(),
    }
    inputs = {**_STORES, **start, **measured}
    stages.append(KINDS[EVALUATION].plan(f"{EVALUATION}-seed{seed}", _ALL, seed, sections, inputs))
    return stages
