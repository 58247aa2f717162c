"""The configuration of a CAN training run: every section in one frozen model, presets, overrides.

The sections are in `kdgat.can.sections`; which stage reads which is in `kdgat.can.kinds`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, field_validator, model_validator

from kdgat.base import Config
from kdgat.can.backend import ACCELERATOR_KEY, KEY, Backend
from kdgat.can.kinds import FUSION_TRAINING, RUN_KINDS, SMALL_ATTENTION, SMALL_AUTOENCODER
from kdgat.can.sections import (
    AttentionConfig,
    AutoencoderConfig,
    CurriculumConfig,
    DetectionLossConfig,
    DistillationConfig,
    EvaluationConfig,
    FusionConfig,
    PreparedDataConfig,
    SamplingConfig,
)
from kdgat.canbus import InjectionConfig, WindowConfig
from kdgat.canbus.features import FEATURE_VERSION
from kdgat.canbus.names import require_dataset_name
from kdgat.run import RunConfig
from kdgat.run.config import refuse_unknown
from kdgat.training import TrainingConfig

# What of a batch that was found to fit is used, by the public datasets: windows of some are much larger than others.
SAFETY_FACTORS: Final = {
    "_default": 0.5, "hcrl_ch": 0.6, "hcrl_sa": 0.55, "set_01": 0.55, "set_02": 0.35, "set_03": 0.35, "set_04": 0.35,
}  # fmt: skip
DEFAULT_TRAINING: Final[dict[str, Any]] = {"safety_factor": SAFETY_FACTORS}
# By the order of windows at few false alarms: a loss depends on how many windows of validation are attacked.
_RANKED: Final = {"monitor": "validation_partial_auc", "mode": "max", "monitor_tolerance": 0.02}
DEFAULT_DIFFERENCES: Final = {
    "normal": _RANKED, "curriculum": _RANKED, "distill_gat": _RANKED, "fusion": FUSION_TRAINING,
}  # fmt: skip
StageName = Annotated[str, Field(json_schema_extra={"enum": list(RUN_KINDS.names)})]


class DataConfig(PreparedDataConfig):
    """State which recordings are used, and how training and validation are kept apart."""

    data_root: str = Field(description="folder that holds the dataset's folder; --data-root")
    catalog: str | None = Field(None, description="YAML file with entries of your own datasets; --catalog")
    leave_out: tuple[str, ...] = Field((), description="files below the dataset's folder that are not read")
    backend: Backend = Field("auto", description="where preprocessing computes; changes no result")

    @field_validator("dataset")
    @classmethod
    def _refuse_paths(cls, dataset: str) -> str:
        return require_dataset_name(dataset)


class AutoencoderScales(Config):
    """Hold the autoencoder's two sizes."""

    large: AutoencoderConfig = Field(AutoencoderConfig(), description="the teacher")
    small: AutoencoderConfig = Field(SMALL_AUTOENCODER, description="the distilled model")


class AttentionScales(Config):
    """Hold the attention network's two sizes."""

    large: AttentionConfig = Field(AttentionConfig(), description="the teacher")
    small: AttentionConfig = Field(SMALL_ATTENTION, description="the distilled model")


class CanConfig(RunConfig):
    """Hold everything that a CAN training run depends on.

    >>> data = {"dataset": "synthetic", "data_root": "data"}
    >>> config = CanConfig.from_preset("quick", {"data": data}, ["seeds=[0, 1]"])
    >>> config.training_for("autoencoder").max_epochs
    5
    """

    preset_package: ClassVar[str] = "kdgat.can"
    default_differences: ClassVar[Mapping[str, Mapping[str, Any]]] = DEFAULT_DIFFERENCES

    data: DataConfig = Field(description="Which recordings are used, and how training and validation are kept apart.")
    windows: WindowConfig = Field(WindowConfig(), description="How a recording is cut into graphs.")
    injection: InjectionConfig = Field(
        InjectionConfig(),
        description=(
            "Attacks injected into benign traffic of virtual vehicles, so that a detector meets cars and attacks "
            "that are not recorded."
        ),
    )
    autoencoder: AutoencoderScales = Field(
        AutoencoderScales(), description="The variational graph autoencoder, which learns benign traffic only."
    )
    gat: AttentionScales = Field(
        AttentionScales(),
        description="The graph attention network with jumping knowledge, which tells attacked windows and nodes.",
    )
    training: TrainingConfig = Field(
        TrainingConfig(**DEFAULT_TRAINING),
        description="Training of every stage; -O training.<key> on the command line also beats training_of.",
    )
    training_of: dict[str, dict[str, Any]] = Field(
        default=DEFAULT_DIFFERENCES, description="per trained stage: what differs from `training`"
    )
    sampling: SamplingConfig = Field(
        SamplingConfig(), description="Windows of an epoch, for every stage but the curriculum."
    )
    loss: DetectionLossConfig = Field(DetectionLossConfig(), description="The loss of the attention network.")
    curriculum: CurriculumConfig = Field(
        CurriculumConfig(), description="What moves from epoch to epoch in the stage `curriculum`."
    )
    distillation: DistillationConfig = Field(DistillationConfig(), description="Students learn from the large models.")
    fusion: FusionConfig = Field(
        FusionConfig(), description="How the scores of autoencoder and attention network become one."
    )
    evaluation: EvaluationConfig = Field(
        EvaluationConfig(),
        description=(
            "Which detector is the default one, and how its scores become decisions; no test label is read for it."
        ),
    )
    stages: tuple[StageName, ...] = Field(
        RUN_KINDS.names, min_length=1, description="subset to run, with what it needs; --stages"
    )

    @field_validator("training", mode="before")
    @classmethod
    def _fill_training(cls, training: Any) -> Any:
        return {**DEFAULT_TRAINING, **training} if isinstance(training, Mapping) else training

    @model_validator(mode="after")
    def _refuse_unknown_stages_to_run(self) -> Self:
        refuse_unknown("stages", self.stages, RUN_KINDS.names)
        return self

    def dataset_name(self) -> str:
        """Name the dataset, by which the safety factor of batches differs."""
        return self.data.dataset

    def stage_names(self) -> Sequence[str]:
        """Name the stages of a run."""
        return RUN_KINDS.names

    def trained_stages(self) -> Sequence[str]:
        """Name the stages that train."""
        return RUN_KINDS.trained

    def training_for(self, stage: str) -> TrainingConfig:
        """Return the training settings of one stage; of a fusion, whose states are small, no batch size is searched."""
        found = super().training_for(stage)
        if stage == "fusion" and "batch_size_mode" not in self.training_of.get(stage, {}):
            return found.model_copy(update={"batch_size_mode": "fixed"}).for_dataset(self.dataset_name())
        return found

    def sections(self, stage: str, scale: str) -> dict[str, Any]:
        """Return all sections as a stage of this kind and scale would see them; its kind says which it reads.

        `data_root`, `catalog`, `leave_out` and `start_from` are not among them: recordings and weights are inputs,
        known by their content. Nor is `backend`, which changes no result.
        """
        sampling = self.sampling
        if not self.injection.enabled:  # there is nothing to take a share of, whatever share a preset names
            sampling = sampling.model_copy(update={"injected_fraction": None})
        return {
            "data": PreparedDataConfig(**self.data.model_dump(include=set(PreparedDataConfig.model_fields))),
            "windows": self.windows,
            "injection": self.injection,
            "feature_version": FEATURE_VERSION,
            "autoencoder": getattr(self.autoencoder, scale, None),
            "gat": getattr(self.gat, scale, None),
            "training": self.training_for(stage),
            "sampling": sampling,
            "loss": self.loss,
            "curriculum": self.curriculum,
            "distillation": self.distillation,
            "fusion": self.fusion,
            "models": self.evaluation.models,
        }

    def execution(self, stage: str) -> dict[str, Any]:
        """Return how stages are executed: it changes no result, and is no part of their identity."""
        return {KEY: self.data.backend, ACCELERATOR_KEY: self.training_for(stage).accelerator}
