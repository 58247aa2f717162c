"""The kinds of stages of the family: what each reads of the configuration, and which function runs it.

A stage's identity is the fields of its configuration class here, its inputs and the kind's `code_version`.
"""

from typing import Any, Final

from pydantic import Field

from kdgat.base import Config
from kdgat.can.sections import (
    AttentionConfig,
    AutoencoderConfig,
    CurriculumConfig,
    DetectionLossConfig,
    DistillationConfig,
    FusionConfig,
    PreparedDataConfig,
    SamplingConfig,
)
from kdgat.canbus import InjectionConfig, WindowConfig
from kdgat.canbus.features import FEATURE_VERSION
from kdgat.run import EVALUATION
from kdgat.run.kinds import StageKind, StageKinds
from kdgat.training import TrainingConfig

PREPARE: Final = "prepare"
SCORE_RECORDINGS: Final = "score_recordings"
COMPARISON: Final = "comparison"

SMALL_AUTOENCODER: Final = AutoencoderConfig(hidden_dims=(80, 40, 16), heads=1, dropout=0.1)
SMALL_ATTENTION: Final = AttentionConfig(hidden=24, heads=4, layers=2, fc_layers=2, dropout=0.1)
# The states that a fusion learns from are small and many.
FUSION_TRAINING: Final[dict[str, Any]] = {"max_epochs": 40, "batch_size": 256, "learning_rate": 2e-3, "patience": 10}


class PrepareConfig(Config):
    """Configure `prepare`."""

    data: PreparedDataConfig
    windows: WindowConfig = WindowConfig()
    injection: InjectionConfig = InjectionConfig()
    feature_version: int = FEATURE_VERSION  # in the identity of the stage: other features are other stores


class AutoencoderStageConfig(Config):
    """Configure `autoencoder`."""

    autoencoder: AutoencoderConfig = AutoencoderConfig()
    sampling: SamplingConfig = SamplingConfig()
    training: TrainingConfig = TrainingConfig()


class NormalStageConfig(Config):
    """Configure `normal`: the attention network on the same mixture of windows in every epoch."""

    gat: AttentionConfig = AttentionConfig()
    loss: DetectionLossConfig = DetectionLossConfig()
    sampling: SamplingConfig = SamplingConfig()
    training: TrainingConfig = TrainingConfig()


class CurriculumStageConfig(NormalStageConfig):
    """Configure `curriculum`: the same network, from easy to hard."""

    curriculum: CurriculumConfig = CurriculumConfig()


class DistillAutoencoderStageConfig(AutoencoderStageConfig):
    """Configure `distill_autoencoder`."""

    autoencoder: AutoencoderConfig = SMALL_AUTOENCODER
    distillation: DistillationConfig = DistillationConfig()


class DistillAttentionStageConfig(NormalStageConfig):
    """Configure `distill_gat`."""

    gat: AttentionConfig = SMALL_ATTENTION
    distillation: DistillationConfig = DistillationConfig()


class FusionStageConfig(Config):
    """Configure `fusion`."""

    fusion: FusionConfig = FusionConfig()
    training: TrainingConfig = TrainingConfig(**FUSION_TRAINING)


class EvaluationStageConfig(Config):
    """Configure `evaluation`: which models are scored; the scores serve any way to decide."""

    models: tuple[str, ...] | None = None  # None = all that the run has


class RecordingsStageConfig(Config):
    """Configure `score_recordings`: what `evaluate_run` is given, with absolute paths."""

    run: str
    data_root: str
    dataset: str | None = None
    catalog: str | None = None
    also_trained: dict[str, str] = Field(
        {}, description="what earlier models were trained on, which the job cannot see"
    )
    notes: tuple[str, ...] = ()
    profile: str | None = Field(None, description="file of `kdgat profile` by which habits and scores are judged")


class ComparisonStageConfig(Config):
    """Configure `comparison`; paths are absolute."""

    runs: dict[str, str]  # name -> output directory of a training, or a registered model
    data_root: str
    dataset: str
    catalog: str | None = None
    hold_out: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    only: tuple[str, ...] | None = Field(None, description="files below the dataset's folder; None: all that are there")
    also_trained: dict[str, str] = Field({}, description="as of compare_runs")
    may_fail: tuple[str, ...] = ()
    # A key that came later stands in no dump while it says what was always done: stages keep their identity.
    profile: str | None = Field(None, description="as of compare_runs", exclude_if=lambda value: value is None)
    contents: dict[str, str] = Field({}, description="hashes of what lies at the paths: other content, other stage")


# Of a training run, in its order. Networks sum in another order since their version 2 (attention over sorted edges):
# the same function, and other last bits of weights and scores.
RUN_KINDS: Final = StageKinds(
    (
        StageKind(
            PREPARE,
            PrepareConfig,
            "kdgat.can.training.preparation:run_prepare",
            trains=False,
            code_version=7,  # features are rounded to float16; a payload cut to one byte breaks its checksum
            parts="kdgat.can.training.preparation:preparation_parts",
        ),
        StageKind("autoencoder", AutoencoderStageConfig, "kdgat.can.training.networks:run_autoencoder", code_version=2),
        StageKind("normal", NormalStageConfig, "kdgat.can.training.networks:run_normal", code_version=2),
        StageKind("curriculum", CurriculumStageConfig, "kdgat.can.training.networks:run_curriculum", code_version=2),
        StageKind(
            "distill_autoencoder",
            DistillAutoencoderStageConfig,
            "kdgat.can.training.networks:run_distill_autoencoder",
            code_version=2,
        ),
        StageKind(
            "distill_gat", DistillAttentionStageConfig, "kdgat.can.training.networks:run_distill_gat", code_version=2
        ),
        StageKind("fusion", FusionStageConfig, "kdgat.can.training.fusion:run_fusion", code_version=3),
        StageKind(
            EVALUATION,
            EvaluationStageConfig,
            "kdgat.can.evaluation.stage:run_evaluation",
            trains=False,
            code_version=6,
        ),
    )
)

# What is run beside a training run: on other recordings, and by night.
KINDS: Final = StageKinds(
    (
        *RUN_KINDS,
        StageKind(
            SCORE_RECORDINGS,
            RecordingsStageConfig,
            "kdgat.can.evaluation.other_recordings:run_score_recordings",
            trains=False,
            code_version=4,  # networks are scored by kernels: other last bits
        ),
        StageKind(
            COMPARISON,
            ComparisonStageConfig,
            "kdgat.can.nightly.comparison:run_comparison",
            trains=False,
            code_version=5,  # as that of score_recordings
        ),
    )
)

# Names under which stages hand their weights to `evaluation`; a run may have any part of them.
MODELS: Final = (*RUN_KINDS.trained, "fusion_small")
