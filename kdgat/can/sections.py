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

    dataset: str
    hold_out: tuple[str, ...] = ()
    validation_fraction: float = Field(0.2, gt=0.0, lt=1.0)  # of every recording, or of the vehicles
    # vehicles: all recordings of some vehicles validate, and none of them trains; recordings: the last part of each
    # one does; auto: vehicles, where enough of them are known. A key that came later: see `edge_features`.
    validation: Literal["auto", "recordings", "vehicles"] = Field("auto", exclude_if=lambda value: value == "auto")
    gap: int = Field(5, ge=0)
    seed: int = Field(0, ge=0, lt=10**9)
    max_bad_fraction: float = Field(0.01, ge=0.0, le=1.0)


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

    hidden_dims: tuple[int, ...] = Field((480, 240, 48), min_length=2)  # convolutions, and the latent width at the end
    heads: int = Field(4, ge=1)  # of the first encoder and decoder convolution; the others have one
    dropout: float = Field(0.15, ge=0.0, lt=1.0)
    conv_type: ConvolutionType = "gat"
    clamp: float = Field(8.0, gt=0.0)
    kl_weight: float = Field(0.01, ge=0.0)
    neighbourhood_weight: float = Field(0.05, ge=0.0)  # 0 = no neighbourhood head
    id_weight: float = Field(0.1, ge=0.0)
    id_buckets: int = Field(0, ge=0)  # 0 = no identifier head, which is what carries over to other cars
    score: Literal["mean", "max"] = "mean"  # over the node errors of a window
    # A key that came later stands in no dump while it says what was always done: stages keep their identity.
    edge_features: bool = Field(True, exclude_if=lambda value: value is True)

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

    hidden: int = Field(48, ge=1)  # channels per head
    heads: int = Field(8, ge=1)
    layers: int = Field(3, ge=1)
    stem: int = Field(64, ge=1)  # width of the linear layer before the first convolution
    fc_layers: int = Field(1, ge=1)  # linear layers of the window head, the last one included
    fc_hidden: int | None = Field(None, ge=1)  # width between them; the width of the jumping knowledge when not set
    dropout: float = Field(0.2, ge=0.0, lt=1.0)
    attention_dropout: float = Field(0.0, ge=0.0, lt=1.0)
    conv_type: ConvolutionType = "gat"
    activation: Literal["relu", "gelu"] = "relu"
    pooling: tuple[Literal["mean", "max"], ...] = Field(("mean", "max"), min_length=1)
    # What the window head sees of the node logits: a window is attacked when one of its identifiers is.
    node_readout: tuple[Literal["max", "logsumexp"], ...] = ("max", "logsumexp")
    clamp: float = Field(8.0, gt=0.0)
    id_embedding: int = Field(0, ge=0)  # width; 0 = not used, which is what carries over to other cars
    id_dropout: float = Field(0.1, ge=0.0, le=1.0)  # share of nodes shown as unknown in training: its row learns
    # A key that came later stands in no dump while it says what was always done: stages keep their identity.
    edge_features: bool = Field(True, exclude_if=lambda value: value is True)


class SamplingConfig(Config):
    """State how many windows an epoch has and where they come from."""

    graphs_per_epoch: int | None = Field(None, ge=1)  # None = every window once
    injected_fraction: float | None = Field(None, ge=0.0, le=1.0)  # of an epoch; None = as in the stores
    balanced: bool = False  # as many attacked windows as others


class DetectionLossConfig(Config):
    """Weigh the parts of the detector's loss."""

    node_weight: float = Field(1.0, ge=0.0)  # of the node loss (which identifier was injected?); 0 = windows only
    positive_weight: float = Field(1.0, gt=0.0)  # of attacked windows against others
    node_positive_weight: float = Field(1.0, gt=0.0)  # of injected nodes against others
    label_smoothing: float = Field(0.0, ge=0.0, lt=0.5)  # labels become s and 1 - s


class CurriculumConfig(Config):
    """State where the curriculum starts and ends."""

    start_ratio: float = Field(1.0, gt=0.0)  # benign windows per attacked one in the first epoch
    end_ratio: float | None = Field(None, gt=0.0)  # None = as many as an epoch of the plain network has
    start_competence: float = Field(0.3, gt=0.0, le=1.0)  # easiest attacked windows that the first epoch draws from
    start_percentile: float = Field(50.0, ge=0.0, lt=100.0)  # benign windows that score above it are hard
    end_percentile: float = Field(90.0, ge=0.0, lt=100.0)
    start_hard_fraction: float = Field(
        0.0, ge=0.0, le=1.0
    )  # of the benign windows of an epoch; the rest are drawn from all
    end_hard_fraction: float = Field(0.5, ge=0.0, le=1.0)
    ramp_fraction: float = Field(0.8, gt=0.0, le=1.0)  # part of the epochs in which all this moves
    graphs_per_epoch: int | None = Field(None, ge=2)  # None = every attacked window once, benign ones by the ratio


class DistillationConfig(Config):
    """Weigh the teacher against the labels."""

    temperature: float = Field(4.0, gt=0.0)
    weight: float = Field(0.7, ge=0.0, le=1.0)  # of the teacher; the rest is the task's own loss


class FusionConfig(Config):
    """State what the fusions learn from, and how."""

    # A detector is too sure of windows it was trained on, so by default the fusions learn from validation windows:
    # whole recordings for learning and for choosing, blocks of windows in turn where recordings are too few.
    fit_on: Literal["validation", "train"] = "validation"
    block: int = Field(64, ge=1)  # windows, where recordings are too few; less where there are few
    hidden: tuple[int, ...] = (64, 32)  # of the MLP
    dqn_hidden: tuple[int, ...] | None = None  # None = as published for the scale
    num_actions: int = Field(21, ge=2)
    epsilon_start: float = Field(1.0, ge=0.0, le=1.0)
    epsilon_end: float = Field(0.05, ge=0.0, le=1.0)
    epsilon_decay_steps: float = Field(100.0, gt=0.0)
    margin_weight: float = Field(0.5, ge=0.0)  # reward for being right by far, beside +1 and -1 for the decision


_ADDING_UP: Final = frozenset({"accumulation", "hours_between_false_episodes"})


@cache
def _warn_of_adding_up() -> None:
    logger.warning(
        "evaluation.accumulation and evaluation.hours_between_false_episodes are retired and do nothing: evidence that "
        "added up over windows found hardly any attack by itself; leave them out of configurations"
    )


class EvaluationConfig(Config):
    """State which models are scored, which one decides, and by which rule."""

    models: tuple[str, ...] | None = None  # to score; None = all that the run has
    # A model, or auto: the best of `candidates` on validation. Not auto by default, because validation knows only the
    # training vehicles: with one vehicle held out it chose the fusion by MLP, which then had 83 false alarms in 2,759
    # benign windows of the other one, and the mean of the attention networks none.
    detector: str = ENSEMBLE
    candidates: tuple[str, ...] = Field(
        (ENSEMBLE, "normal", "curriculum", "fusion"), min_length=1
    )  # simplest first: it wins ties
    average_seeds: bool = True  # the mean of all seeds' calibrated logits is one detector
    calibration: Literal["none", "temperature", "platt"] = "temperature"  # of logits; errors need platt
    # budget: the threshold comes from windows without attack, and the habits of identifiers raise alarms, too.
    rule: Literal["budget", "fixed", "per_recording"] = "budget"
    # On the calibrated probability; by a budget it can only be lower, unless whole vehicles validate. Not a half: a
    # third of the windows that training meets are attacked, on a road hardly any is, and single messages look like a
    # driver's hand at the indicator.
    threshold: float = Field(0.75, gt=0.0, lt=1.0)
    # Windows with a false alarm of the network, per hour and per vehicle. Scores of windows reach about one in a
    # thousand of them, some 40 an hour on a bus of 1,100 messages a second; a much smaller budget ends at the default
    # threshold.
    alarms_per_hour: float = Field(40.0, gt=0.0, allow_inf_nan=False)
    # Share of benign validation windows that may raise an alarm, where validation has no attack to calibrate errors by.
    benign_quantile: float = Field(0.005, gt=0.0, lt=1.0)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_retired(cls, data: Any) -> Any:
        """Files of older versions say how evidence of single identifiers adds up over windows."""
        if not isinstance(data, Mapping) or not data.keys() & _ADDING_UP:
            return data
        if data.get("accumulation") not in ("off", False):
            _warn_of_adding_up()
        return {key: value for key, value in data.items() if key not in _ADDING_UP}
