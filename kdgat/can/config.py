"""The configuration of a CAN training run: every section in one frozen model, presets, overrides.

Each section lives beside the code that reads it; this module only puts them together and says which stage reads which.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kdgat.can.backend import KEY, Backend
from kdgat.can.feature_names import FEATURE_VERSION
from kdgat.can.sections import (
    AttentionConfig,
    AutoencoderConfig,
    CurriculumConfig,
    DetectionLossConfig,
    DistillationConfig,
    EvaluationConfig,
    FusionConfig,
    InjectionConfig,
    PreparedDataConfig,
    SamplingConfig,
    WindowConfig,
)
from kdgat.cluster.estimate import DEFAULT_KEY
from kdgat.cluster.resources import ResourceRequest
from kdgat.run import presets
from kdgat.stage.configuration import Config, unknown_key_text, validate_config
from kdgat.training.config import TrainingConfig

PRESET_PACKAGE: Final = "kdgat.can"
PRESETS: Final = ("quick", "full", "tutorial")
StageName = Literal[
    "prepare", "autoencoder", "normal", "curriculum", "distill_autoencoder", "distill_gat", "fusion", "evaluation"
]
STAGE_NAMES: Final[tuple[StageName, ...]] = get_args(StageName)
TRAINED_STAGES: Final[tuple[StageName, ...]] = (
    "autoencoder",
    "normal",
    "curriculum",
    "distill_autoencoder",
    "distill_gat",
    "fusion",
)


# The states that a fusion learns from are small and many.
DEFAULT_DIFFERENCES: Final[dict[str, dict[str, Any]]] = {
    "fusion": {"max_epochs": 40, "batch_size": 256, "learning_rate": 2e-3, "patience": 10}
}


class DataConfig(PreparedDataConfig):
    """Say which recordings are used, and how training and validation are kept apart."""

    data_root: str
    catalog: str | None = None
    leave_out: tuple[str, ...] = Field((), description="files below the dataset's folder that are not read")
    backend: Backend = Field("auto", description="where preprocessing computes; changes no result")


class AutoencoderScales(Config):
    """Hold the autoencoder's two sizes."""

    large: AutoencoderConfig = AutoencoderConfig()
    small: AutoencoderConfig = AutoencoderConfig(hidden_dims=(80, 40, 16), heads=1, dropout=0.1)


class AttentionScales(Config):
    """Hold the attention network's two sizes."""

    large: AttentionConfig = AttentionConfig()
    small: AttentionConfig = AttentionConfig(hidden=24, heads=4, layers=2, fc_layers=2, dropout=0.1)


class CanConfig(Config):
    """Hold everything that a CAN training run depends on."""

    preset: str | None = Field(None, description="which one this was made from: noted in the results, read by no stage")
    data: DataConfig
    windows: WindowConfig = WindowConfig()
    injection: InjectionConfig = InjectionConfig()
    autoencoder: AutoencoderScales = AutoencoderScales()
    gat: AttentionScales = AttentionScales()
    training: TrainingConfig = TrainingConfig()
    training_of: dict[str, dict[str, Any]] = Field(
        default=DEFAULT_DIFFERENCES, description="per trained stage: what differs from `training`"
    )
    sampling: SamplingConfig = SamplingConfig()
    loss: DetectionLossConfig = DetectionLossConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    distillation: DistillationConfig = DistillationConfig()
    fusion: FusionConfig = FusionConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    start_from: str | None = Field(
        None, description="a run or registered model whose weights each trained stage starts from; null = from scratch"
    )
    stages: tuple[StageName, ...] = Field(STAGE_NAMES, min_length=1)
    resources: dict[str, ResourceRequest] = Field(
        default={DEFAULT_KEY: ResourceRequest()},
        description="per stage, or default: what its job asks for on a cluster; read by no stage",
    )

    @field_validator("seeds")
    @classmethod
    def _refuse_repeated_seeds(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("a seed stands twice: list each seed once")
        return seeds

    @model_validator(mode="after")
    def _check_differences(self) -> Self:
        for stage in self.training_of:
            if stage not in TRAINED_STAGES:
                raise ValueError(f"training_of: {unknown_key_text(stage, TRAINED_STAGES)}")
            self.training_for(stage)
        return self

    @field_validator("resources")
    @classmethod
    def _refuse_unknown_stages(cls, resources: dict[str, ResourceRequest]) -> dict[str, ResourceRequest]:
        for stage in resources:
            if stage not in (*STAGE_NAMES, DEFAULT_KEY):
                text = unknown_key_text(stage, (*STAGE_NAMES, DEFAULT_KEY))
                raise PydanticCustomError("unknown_key", "{text}", {"text": text})
        return resources

    def training_for(self, stage: str) -> TrainingConfig:
        """Return the training settings of one stage: the common ones with its differences."""
        return validate_config(TrainingConfig, {**self.training.model_dump(), **self.training_of.get(stage, {})})


def make_config(
    preset: str, overrides: Sequence[str] = (), *, data: Mapping[str, Any], seeds: Sequence[int] | None = None
) -> CanConfig:
    """Build a configuration from a preset, what the command line names, and overrides, in this order.

    Raises:
        ConfigurationError: naming key, value and fix.
    """
    said: dict[str, Any] = {"data": dict(data)}
    if seeds is not None:
        said["seeds"] = list(seeds)
    return fill_preset(preset, said, overrides)


def fill_preset(preset: str, said: Mapping[str, Any], overrides: Sequence[str] = ()) -> CanConfig:
    """Build a configuration from what somebody said, a preset for the rest, and overrides; see `kdgat.run.presets`."""
    return presets.fill_preset(CanConfig, PRESET_PACKAGE, preset, said, overrides, DEFAULT_DIFFERENCES)


def complete_config(config: CanConfig, preset: str | None = None, overrides: Sequence[str] = ()) -> CanConfig:
    """Return a configuration whose unset keys are those of a preset, with overrides on top; see `kdgat.run.presets`."""
    return presets.complete(config, PRESET_PACKAGE, preset, overrides, DEFAULT_DIFFERENCES)


def load_config(content: Mapping[str, Any]) -> CanConfig:
    """Read a configuration from plain data, for instance out of `run.json`."""
    return validate_config(CanConfig, content)


def stage_sections(config: CanConfig, stage: StageName, scale: str) -> dict[str, Any]:
    """Return what one stage reads, as plain data: only that determines its identity.

    `data_root`, `catalog`, `leave_out` and `start_from` are left out: recordings and weights are inputs, known by their
    content. So is `backend`, which changes no result.
    """
    autoencoder, gat = getattr(config.autoencoder, scale, None), getattr(config.gat, scale, None)
    sampling = config.sampling
    if not config.injection.enabled:  # there is nothing to take a share of, whatever share a preset names
        sampling = sampling.model_copy(update={"injected_fraction": None})
    sections: dict[str, Any]
    match stage:
        case "prepare":
            data = config.data.model_dump(mode="json", exclude={"data_root", "catalog", "leave_out", "backend"})
            sections = {
                "data": data,
                "windows": config.windows,
                "injection": config.injection,
                "feature_version": FEATURE_VERSION,
            }
        case "autoencoder":
            sections = {"autoencoder": autoencoder, "sampling": sampling}
        case "normal":
            sections = {"gat": gat, "loss": config.loss, "sampling": sampling}
        case "curriculum":
            sections = {"gat": gat, "loss": config.loss, "curriculum": config.curriculum}
        case "distill_autoencoder":
            sections = {
                "autoencoder": autoencoder, "sampling": sampling, "distillation": config.distillation
            }  # fmt: skip
        case "distill_gat":
            sections = {
                "gat": gat, "loss": config.loss, "sampling": sampling, "distillation": config.distillation
            }  # fmt: skip
        case "fusion":
            sections = {"fusion": config.fusion}
        case "evaluation":
            sections = {"models": config.evaluation.models}  # decisions are made from its scores, later
    if stage in TRAINED_STAGES:
        sections["training"] = config.training_for(stage)
    return {
        name: section.model_dump(mode="json") if isinstance(section, Config) else section
        for name, section in sections.items()
    }


def stage_execution(config: CanConfig) -> dict[str, Any]:
    """Return how stages are executed, as plain data: it changes no result, and is no part of their identity."""
    return {KEY: config.data.backend}
