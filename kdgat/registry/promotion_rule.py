"""What a model must score to go into service: the settings of a promotion, and the metrics that they speak of."""

from typing import Final, Literal

from pydantic import Field

from kdgat.base import Config

FALSE_ALARMS: Final = "false_alarm_rate"
ACCURACY: Final = "accuracy"
ALARMS_PER_HOUR: Final = "false_alarms_per_hour"
RECALL_PREFIX: Final = "recall_"  # of a kind of attack: recall_suppression
NUM_WINDOWS: Final = "num_windows"
NUM_ATTACKS: Final = "num_attack_windows"


class PromotionRule(Config):
    """State how much better a model must be on the whole, and how much worse it may be anywhere.

    The margin is a part of the error that is left: an absolute one is above all that a mean near 1 can still rise.
    Near 1 that part is less than one window, so `accept="not_worse"` counts wrong windows as well.
    """

    metric: Literal["f1", "auc", "pr_auc", "mcc", "balanced_accuracy", "accuracy", "recall", "precision"] = Field(
        "f1", description="what is compared in scenarios with attacks"
    )
    accept: Literal["better", "not_worse"] = Field(
        "better",
        description="better: by the margin, on the mean; not_worse: below the best so far by no more than the margin "
        "or more_windows",
    )
    error_margin: float = Field(
        0.05,
        ge=0.0,
        lt=1.0,
        description="the margin, as a part of the error (1 - mean) of the model in service, or of the best so far with "
        "accept=not_worse; with few wrong windows that is less than one window",
    )
    margin: float | None = Field(
        None,
        ge=0.0,
        le=1.0,
        description="the margin as a difference of the means; given, it replaces error_margin and more_windows",
    )
    more_windows: int = Field(
        2,
        ge=0,
        description="with accept=not_worse: wrong windows, added over the scenarios that have more of them than with "
        "the best so far, that the new model may have more even where the error margin is less; not for auc and pr_auc",
    )
    fewer_windows: int = Field(
        0, ge=0, description="with accept=better: wrong windows over all scenarios that the new model must have fewer"
    )
    worse_by: float = Field(
        0.01, ge=0.0, le=1.0, description="by which any one scenario may be worse than the best so far"
    )
    more_false_alarms: float = Field(
        0.002,
        ge=0.0,
        le=1.0,
        description="by which the false alarm rate of any one scenario may be above the lowest",
    )
    more_alarms_per_hour: float = Field(
        0.0,
        ge=0.0,
        description="by which the mean of benign windows in alarm per hour may be above that of the model in service",
    )
    held_kinds: tuple[str, ...] = Field(
        ("suppression",), description="kinds of attack of which the recall is held in every scenario that has them"
    )
    min_windows: int = Field(100, ge=1, description="windows that a scenario needs to have a part in the decision")
    minimum: float = Field(0.5, ge=0.0, le=1.0, description="mean over scenarios that the first model must reach")
    most_false_alarms: float = Field(
        0.1, ge=0.0, le=1.0, description="false alarm rate that the first model may have in any one scenario"
    )
