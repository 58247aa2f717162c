"""The sections of a CAN run's configuration, apart from the code that reads them: planning needs them alone.

Importing this module loads neither torch nor a library that reads recordings.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from kdgat.base import Config
from kdgat.can.models.names import ENSEMBLE

ConvolutionType = Literal["gat", "gatv2"]
AUTO: Final = "auto"  # the detector that is best on validation

logger = logging.getLogger(__name__)


class PreparedDataConfig(Config):
    """State how training recordings are split, and which damage in them is tolerated."""

    dataset: str = Field(
        description="name in the catalog (`kdgat data list`) or of a folder below data_root; --dataset"
    )
    hold_out: tuple[str, ...] = Field(
        (),
        description="vehicles, or words in recording names: never trained on, tested as scenario held_out; --hold-out",
    )
    validation_fraction: float = Field(
        0.2,
        gt=0.0,
        lt=1.0,
        description="the last part of each training recording that validates, or the part of the vehicles",
    )
    # vehicles: all recordings of some vehicles validate, and none of them trains; recordings: the last part of each
    # one does; auto: vehicles, where enough of them are known. A key that came later: see `edge_features`.
    validation: Literal["auto", "recordings", "vehicles"] = Field(
        "auto",
        exclude_if=lambda value: value == "auto",
        description=(
            "recordings: the last part of each; vehicles: whole ones, none of which trains; auto: vehicles, where "
            "at least 8 are known"
        ),
    )
    gap: int = Field(5, ge=0, description="window strides left out between the two parts")
    seed: int = Field(0, ge=0, lt=10**9, description="of the injected traffic; all training seeds share it")
    max_bad_fraction: float = Field(
        0.01, ge=0.0, le=1.0, description="rows that may be unreadable before a recording is refused"
    )


class _NetworkConfig(Config):
    @model_validator(mode="before")
    @classmethod
    def _leave_out_retired(cls, data: Any) -> Any:
        """Files of older versions have the key `use_cugraph`, by which the same weights computed the same."""
        if not isinstance(data, Mapping) or "use_cugraph" not in data:
            return data
        if data["use_cugraph"]:
            _warn_of_use_cugraph()
        return {key: value for key, value in data.items() if key != "use_cugraph"}


@cache
def _warn_of_use_cugraph() -> None:
    logger.warning(
        "use_cugraph is retired and does nothing: on a GPU attention is computed by kdgat's own kernel, edge features "
        "included (docs/gpu.md); remove the key"
    )


class AutoencoderConfig(_NetworkConfig):
    """Choose the width and the parts of a variational graph autoencoder."""

    hidden_dims: tuple[int, ...] = Field(
        (480, 240, 48), min_length=2, description="widths of the convolutions; the last one is the latent width"
    )
    heads: int = Field(4, ge=1, description="attention heads of the first encoder and decoder convolution")
    dropout: float = Field(0.15, ge=0.0, lt=1.0, description="while training")
    conv_type: ConvolutionType = Field("gat", description="convolution: gat, or gatv2")
    clamp: float = Field(8.0, gt=0.0, description="standardised features are cut off at this many deviations")
    kl_weight: float = Field(0.01, ge=0.0, description="of the Kullback-Leibler term")
    neighbourhood_weight: float = Field(
        0.05, ge=0.0, description="of predicting which nodes are neighbours; 0 leaves that head out"
    )
    id_weight: float = Field(0.1, ge=0.0, description="of predicting the identifier, if there is such a head")
    id_buckets: int = Field(
        0, ge=0, description="hash buckets of the identifier head; 0 leaves it out, which carries over to other cars"
    )
    score: Literal["mean", "max"] = Field("mean", description="over the node errors of a window: mean or max")
    # A key that came later stands in no dump while it says what was always done: stages keep their identity.
    edge_features: bool = Field(
        True,
        exclude_if=lambda value: value is True,
        description="false: convolutions that know only which identifiers follow each other, not how",
    )

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        *widths, _ = self.hidden_dims
        for width in (widths[0], widths[-1]):  # of the first convolution of the encoder and of the decoder
            if width % self.heads:
                raise ValueError(
                    f"hidden_dims: {width} is not a multiple of heads={self.heads}; choose widths that the heads divide"
                )
        return self


class AttentionConfig(_NetworkConfig):
    """Choose the width and the parts of a graph attention network."""

    hidden: int = Field(48, ge=1, description="channels per head")
    heads: int = Field(8, ge=1, description="attention heads")
    layers: int = Field(3, ge=1, description="convolutions")
    stem: int = Field(64, ge=1, description="width of the linear layer before the first convolution")
    fc_layers: int = Field(1, ge=1, description="linear layers of the window head")
    fc_hidden: int | None = Field(
        None, ge=1, description="width between them; null: the width of the jumping knowledge"
    )
    dropout: float = Field(0.2, ge=0.0, lt=1.0, description="while training")
    attention_dropout: float = Field(0.0, ge=0.0, lt=1.0, description="of attention weights, while training")
    conv_type: ConvolutionType = Field("gat", description="convolution: gat, or gatv2")
    activation: Literal["relu", "gelu"] = Field("relu", description="relu or gelu")
    pooling: tuple[Literal["mean", "max"], ...] = Field(
        ("mean", "max"), min_length=1, description="from nodes to a window"
    )
    # What the window head sees of the node logits: a window is attacked when one of its identifiers is.
    node_readout: tuple[Literal["max", "logsumexp"], ...] = Field(
        ("max", "logsumexp"), description="what the window head sees of the node logits"
    )
    clamp: float = Field(8.0, gt=0.0, description="standardised features are cut off at this many deviations")
    id_embedding: int = Field(
        0, ge=0, description="width of identifier embeddings; 0 uses no identifiers, which carries over to other cars"
    )
    id_dropout: float = Field(
        0.1,
        ge=0.0,
        le=1.0,
        description="nodes shown as an unknown identifier while training, so that its embedding learns too",
    )
    # A key that came later stands in no dump while it says what was always done: stages keep their identity.
    edge_features: bool = Field(
        True,
        exclude_if=lambda value: value is True,
        description="false: convolutions that know only which identifiers follow each other, not how",
    )


class SamplingConfig(Config):
    """State how many windows an epoch has and where they come from."""

    graphs_per_epoch: int | None = Field(None, ge=1, description="null: every window once")
    injected_fraction: float | None = Field(
        None, ge=0.0, le=1.0, description="of them from injected traffic; null: as many as there are"
    )
    balanced: bool = Field(False, description="as many attacked windows as others")


class DetectionLossConfig(Config):
    """Weigh the parts of the detector's loss."""

    node_weight: float = Field(
        1.0, ge=0.0, description="of the node loss (which identifier was injected?) beside the window loss"
    )
    positive_weight: float = Field(1.0, gt=0.0, description="of attacked windows against others")
    node_positive_weight: float = Field(1.0, gt=0.0, description="of injected nodes against others")
    label_smoothing: float = Field(0.0, ge=0.0, lt=0.5, description="labels 0 and 1 become this and 1 - this")


class CurriculumConfig(Config):
    """State where the curriculum starts and ends."""

    start_ratio: float = Field(1.0, gt=0.0, description="benign windows per attacked one in the first epoch")
    end_ratio: float | None = Field(
        None, gt=0.0, description="and at the end; null: as many as an epoch of the plain network has"
    )
    start_competence: float = Field(
        0.3,
        gt=0.0,
        le=1.0,
        description=(
            "of the attacked windows, those with most injected messages first, which the first epoch draws from; "
            "1.0: from all"
        ),
    )
    start_percentile: float = Field(
        50.0,
        ge=0.0,
        lt=100.0,
        description="benign windows whose autoencoder score is above this percentile are hard, in the first epoch",
    )
    end_percentile: float = Field(90.0, ge=0.0, lt=100.0, description="and at the end")
    start_hard_fraction: float = Field(
        0.0, ge=0.0, le=1.0, description="of the benign windows of an epoch that are hard ones, in the first epoch"
    )
    end_hard_fraction: float = Field(0.5, ge=0.0, le=1.0, description="and at the end")
    ramp_fraction: float = Field(0.8, gt=0.0, le=1.0, description="part of the epochs in which all this moves")
    graphs_per_epoch: int | None = Field(
        None, ge=2, description="null: every attacked window once, benign ones by the ratio"
    )


class DistillationConfig(Config):
    """Weigh the teacher against the labels."""

    temperature: float = Field(4.0, gt=0.0, description="softens teacher and student alike")
    weight: float = Field(0.7, ge=0.0, le=1.0, description="of the teacher; the rest is the labels'")


class FusionConfig(Config):
    """State what the fusions learn from, and how."""

    # A detector is too sure of windows it was trained on, so by default the fusions learn from validation windows:
    # whole recordings for learning and for choosing, blocks of windows in turn where recordings are too few.
    fit_on: Literal["validation", "train"] = Field(
        "validation", description="validation or train; a detector is too sure of the windows it was trained on"
    )
    block: int = Field(
        64,
        ge=1,
        description=(
            "consecutive windows that stay together when some are kept apart for choosing, where recordings are "
            "too few to be"
        ),
    )
    hidden: tuple[int, ...] = Field((64, 32), description="widths of the MLP")
    dqn_hidden: tuple[int, ...] | None = Field(
        None, description="widths of the Q network; null: as published for the scale"
    )
    num_actions: int = Field(21, ge=2, description="mixing weights that the Q network chooses from")
    epsilon_start: float = Field(1.0, ge=0.0, le=1.0, description="share of random choices at first")
    epsilon_end: float = Field(0.05, ge=0.0, le=1.0, description="and in the long run")
    epsilon_decay_steps: float = Field(100.0, gt=0.0, description="steps in which it falls by a factor of e")
    margin_weight: float = Field(
        0.5, ge=0.0, description="reward for being right by far, beside +1 and -1 for the decision"
    )


_ADDING_UP: Final = frozenset({"accumulation", "hours_between_false_episodes"})


@cache
def _warn_of_adding_up() -> None:
    logger.warning(
        "evaluation.accumulation and evaluation.hours_between_false_episodes are retired and do nothing: evidence that "
        "added up over windows found hardly any attack by itself; leave them out of configurations"
    )


class EvaluationConfig(Config):
    """State which models are scored, which one decides, and by which rule."""

    models: tuple[str, ...] | None = Field(None, description="to be scored; null: all")
    # A model, or auto: the best of `candidates` on validation. Not auto by default, because validation knows only the
    # training vehicles: with one vehicle held out it chose the fusion by MLP, which then had 83 false alarms in 2,759
    # benign windows of the other one, and the mean of the attention networks none.
    detector: str = Field(
        ENSEMBLE,
        description=(
            "a model (ensemble: the mean of the attention networks), or auto: the best of the candidates on validation"
        ),
    )
    candidates: tuple[str, ...] = Field(
        (ENSEMBLE, "normal", "curriculum", "fusion"), min_length=1, description="the first of equals wins"
    )
    average_seeds: bool = Field(True, description="the mean of all seeds' calibrated logits is one detector")
    calibration: Literal["none", "temperature", "platt"] = Field(
        "temperature", description="of logits on validation: none, temperature or platt"
    )
    # budget: the threshold comes from windows without attack, and the habits of identifiers raise alarms, too.
    rule: Literal["budget", "fixed", "per_recording"] = Field(
        "budget",
        description=(
            "budget: the threshold keeps alarms_per_hour where there is clean traffic to judge by, and the habits "
            "of identifiers raise alarms, too; fixed: one threshold; per_recording: it may move inside a "
            "recording that already has alarms"
        ),
    )
    # On the calibrated probability; by a budget it can only be lower, unless whole vehicles validate. Not a half: a
    # third of the windows that training meets are attacked, on a road hardly any is, and single messages look like a
    # driver's hand at the indicator.
    threshold: float = Field(
        0.75,
        gt=0.0,
        lt=1.0,
        description=(
            "of the calibrated probability; that of a budget is above it only where whole vehicles validate, and "
            "ask for it"
        ),
    )
    # Benign windows in alarm by the network, per hour and per vehicle. Scores of windows reach about one in a
    # thousand of them, some 40 an hour on a bus of 1,100 messages a second; a much smaller budget ends at the default
    # threshold.
    alarms_per_hour: float = Field(
        40.0,
        gt=0.0,
        allow_inf_nan=False,
        description="benign windows in alarm that the budget allows the network, per hour and per vehicle",
    )
    # Share of benign validation windows that may raise an alarm, where validation has no attack to calibrate errors by.
    benign_quantile: float = Field(
        0.005,
        gt=0.0,
        lt=1.0,
        description="validation alarms that are accepted where there is no attack to calibrate by",
    )

    @model_validator(mode="before")
    @classmethod
    def _leave_out_retired(cls, data: Any) -> Any:
        """Files of older versions say how evidence of single identifiers adds up over windows."""
        if not isinstance(data, Mapping) or not data.keys() & _ADDING_UP:
            return data
        if data.get("accumulation") not in ("off", False):
            _warn_of_adding_up()
        return {key: value for key, value in data.items() if key not in _ADDING_UP}
