"""The stages of a CAN training run and what each needs from the others: a pure function of the configuration.

    prepare -> autoencoder, normal -> curriculum -> distill_autoencoder, distill_gat -> fusion -> evaluation

`prepare` is shared by all seeds. Each stage's configuration holds only the sections that it reads, so that a change of
the fusion leaves the identity of the autoencoder, and with it its finished run, alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from kdgat.base import ConfigurationError, unknown_key_text
from kdgat.can.config import CanConfig
from kdgat.can.kinds import KINDS, MODELS, PREPARE, RUN_KINDS
from kdgat.can.models.names import detector_names
from kdgat.can.sections import AUTO, EvaluationConfig
from kdgat.run import EVALUATION, WEIGHTS, PlannedStage
from kdgat.run.plan import InputReference, with_dependencies

Scale = Literal["large", "small", "shared"]  # `prepare` has no model, hence is shared

FAMILY: Final = "can"
START: Final = "start"  # name of the input that holds weights to start from
TEST_STORES: Final = "test-*"  # one artifact of `prepare` per test scenario

# Not made where injection is switched off, or no stretch of clean traffic is long enough; where nothing tests.
OPTIONAL: Final = ("injected", "injected_validation", TEST_STORES)
_ALL_STORES: Final = ("train", "validation", "injected", "injected_validation")


def plan_can(config: CanConfig) -> list[PlannedStage]:
    """List the stages of a run in an order in which they can be executed.

    `config.stages` chooses a subset; what a chosen stage depends on is planned with it. Evaluation takes the models
    that are there then, or all of them if it is chosen alone.

    Raises:
        ConfigurationError: if the detector that `config.evaluation` asks for is not among the models.
    """
    plan = [_planned(config, PREPARE, PREPARE, "shared", config.data.seed, (), {})]
    for seed in config.seeds:
        plan += _plan_seed(config, seed)
    trained = with_dependencies(
        plan, {stage.name for stage in plan if stage.stage in config.stages and stage.stage != EVALUATION}
    )
    if EVALUATION not in config.stages:
        return trained
    if not any(stage.stage in RUN_KINDS.trained for stage in trained):
        trained = [stage for stage in plan if stage.stage != EVALUATION]
    evaluations = [_of_models(stage, trained) for stage in plan if stage.stage == EVALUATION]
    _check_detector(config.evaluation, evaluations[0])
    return [*trained, *evaluations]


def _plan_seed(config: CanConfig, seed: int) -> list[PlannedStage]:
    def planned(stage: str, scale: Scale, stores: Sequence[str], weights: dict[str, str]) -> PlannedStage:
        return _planned(config, stage, _name(stage, scale, seed), scale, seed, stores, weights)

    autoencoder, normal, curriculum = (_name(stage, "large", seed) for stage in ("autoencoder", "normal", "curriculum"))
    students = {"autoencoder": _name("distill_autoencoder", "small", seed), "gat": _name("distill_gat", "small", seed)}
    large = {"autoencoder": autoencoder, "gat": curriculum}
    return [
        planned("autoencoder", "large", _ALL_STORES, {}),
        planned("normal", "large", _ALL_STORES, {}),
        planned("curriculum", "large", _ALL_STORES, {"autoencoder": autoencoder}),
        planned("distill_autoencoder", "small", _ALL_STORES, {"teacher": autoencoder}),
        planned("distill_gat", "small", _ALL_STORES, {"teacher": curriculum}),
        planned("fusion", "large", _ALL_STORES, large),
        planned("fusion", "small", _ALL_STORES, students),
        planned(
            EVALUATION,
            "large",
            ("validation", "injected_validation", TEST_STORES),
            {
                "autoencoder": autoencoder,
                "normal": normal,
                "curriculum": curriculum,
                "distill_autoencoder": students["autoencoder"],
                "distill_gat": students["gat"],
                "fusion": _name("fusion", "large", seed),
                "fusion_small": _name("fusion", "small", seed),
            },
        ),
    ]


def _planned(
    config: CanConfig,
    stage: str,
    name: str,
    scale: Scale,
    seed: int,
    stores: Sequence[str],
    weights: dict[str, str],
) -> PlannedStage:
    """Plan a stage that reads these stores of `prepare` and the weights of these stages."""
    inputs = {store.removesuffix("*"): InputReference(PREPARE, store, store in OPTIONAL) for store in stores}
    inputs |= {name: InputReference(source, WEIGHTS) for name, source in weights.items()}
    return KINDS[stage].plan(name, scale, seed, config.sections(stage, scale), inputs, config.execution(stage))


def _name(stage: str, scale: str, seed: int) -> str:
    return f"{stage}-{scale}-seed{seed}"


def _of_models(evaluation: PlannedStage, trained: Sequence[PlannedStage]) -> PlannedStage:
    """Return an evaluation that asks for the weights of these stages alone."""
    names = {stage.name for stage in trained}
    inputs = {name: reference for name, reference in evaluation.inputs.items() if reference.stage in names}
    return replace(evaluation, inputs=inputs)


def _check_detector(config: EvaluationConfig, evaluation: PlannedStage) -> None:
    """Refuse, before hours of training, what the evaluation would refuse after them."""
    known = detector_names(name for name in MODELS if name in evaluation.inputs)
    for name in config.models or ():
        if name not in known:
            raise ConfigurationError(f"evaluation.models: {unknown_key_text(name, known)}")
    scored = known if config.models is None else list(config.models)
    wanted = config.candidates if config.detector == AUTO else (config.detector,)
    if not any(name in scored for name in wanted):
        raise ConfigurationError(
            f"evaluation.detector={config.detector!r} needs {' or '.join(wanted)}, and the evaluation scores "
            f"{', '.join(scored)}: choose one of these, or add to stages or evaluation.models"
        )
