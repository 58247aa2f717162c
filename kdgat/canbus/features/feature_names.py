"""The names of what a window's graph holds of a node and of an edge, and the version of their meaning."""

import math
from typing import Final, Literal

# Raise it with every change of what a feature means: stores and models of another are refused.
FEATURE_VERSION: Final = 4
# An identifier of a longer period is often sent between its times, too, when what it says changes (the mixed mode of
# AUTOSAR's COM): coming early, it raises no alarm of the clock's own.
LOG_MIXED_PERIOD: Final = math.log2(0.08)  # of seconds
# Where a recording has lost no single message so far, one that is missing says as much as two do elsewhere.
LOSSLESS_MARGIN: Final = 0.3

Reduction = Literal["mean", "minimum", "maximum"]
REDUCTIONS: Final[dict[str, tuple[Reduction, ...]]] = {
    "interval_ratio": ("mean", "minimum", "maximum"),
    "double_interval_ratio": ("mean", "minimum", "maximum"),
    "interval_low_rank": ("mean", "maximum"),
    "interval_high_rank": ("mean", "maximum"),
    "interval_novelty": ("mean", "maximum"),
    "bits_changed": ("mean", "maximum"),
    "toggle_surprise": ("mean", "maximum"),
    "toggle_rank": ("mean", "maximum"),
    "missing_toggles": ("mean", "maximum"),
    "new_toggles": ("mean", "maximum"),
    "twin": ("mean", "maximum"),
    "twin_rank": ("mean", "maximum"),
    "repeat_rank": ("mean", "maximum"),
    "length_changed": ("mean",),
    "novelty": ("maximum",),
    "experience": ("minimum",),
    "order_surprise": ("mean", "maximum"),
    "outranks": ("maximum",),
    "priority": ("mean",),
    "bus_gap": ("mean", "minimum", "maximum"),
    "bus_rate": ("mean", "maximum"),
    "log_period": ("mean",),
    "period_known": ("mean",),
    "recording_age": ("mean",),
    # of kdgat.canbus.features.clock
    "early": ("maximum",),
    "overdue": ("maximum",),
    "overdue_novelty": ("maximum",),
    "missed": ("maximum",),
    "phase": ("mean", "minimum", "maximum"),
    "phase_run": ("maximum",),
    "phase_habit": ("maximum",),
    "losses": ("mean",),
    "regular": ("mean",),
    # of kdgat.canbus.features.fields
    "sequence_surprise": ("mean", "maximum"),
    "sequence_excess": ("maximum",),
    "sequence_peak": ("maximum",),
    "counter_break": ("maximum",),
    "checksum_break": ("maximum",),
    "checksum_known": ("mean",),
    "jump": ("maximum",),
    "value_rank": ("mean", "maximum"),
    "frozen": ("mean", "maximum"),
    "still": ("mean", "maximum"),
    "odd": ("mean",),
    "odd_run": ("maximum",),
}
_WINDOW_FEATURES: Final = (
    "count",  # log2 of the node's messages, over 4
    "count_excess",  # log2 of its messages over those its period predicts for the window's duration
    "first_position",
    "last_position",
    "duration_ratio",  # log2 of the window's duration over what the bus's long-run rate predicts
    "zero_bytes",  # share of zero bytes in its payloads
    "ones",  # share of one-bits in its payloads
    "payload_bytes",  # mean payload length over 8
    "waiting",  # 1: the id is overdue at the window's end; without a message in it, this is all that is known of it
)
NODE_FEATURES: Final = (
    tuple(f"{name}_{reduction}" for name, reductions in REDUCTIONS.items() for reduction in reductions)
    + _WINDOW_FEATURES
)
EDGE_FEATURES: Final = (
    "count",  # log2 of 1 + how often the target followed the source
    "order_surprise_mean",
    "order_surprise_maximum",
    "gap_mean",  # log2 of the time between the two messages over the bus's mean gap
    "position",
    "reversed_exists",
    "self_loop",
)
