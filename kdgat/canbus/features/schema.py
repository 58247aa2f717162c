"""What a graph of a window holds: the features of nodes and edges, the version of their meaning, and all columns."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from kdgat.graphs import EDGE_ATTR, EDGE_INDEX, Column, Schema
from kdgat.graphs.packing import Packing
from kdgat.graphs.schema import X

# Raise it with every change of what a feature means: stores and models of another are refused.
FEATURE_VERSION: Final = 8

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


# The stores of a run, beside one per test scenario.
TRAIN, VALIDATION = "train", "validation"
INJECTED, INJECTED_VALIDATION = "injected", "injected_validation"

RECORDINGS: Final = "recordings"  # the names that `recording` indexes, among the attributes of a store

# What a window is attacked by, as far as the recording states.
ATTACK_KINDS: Final = (
    "none", "dos", "fuzzing", "spoofing", "systematic", "replay", "suppression", "masquerade", "sparse", "unknown",
)  # fmt: skip

# Values of features that mean nothing for most nodes or edges; of all others it is 0.
_AT_REST: Final = {
    **dict.fromkeys(("early", "overdue", "phase", "frozen", "still"), -4.0),  # kdgat.canbus.features.timer.REST
    **dict.fromkeys(("period_known", "regular", "payload_bytes"), 1.0),
}
_EDGES_AT_REST: Final = {"count": 1.0}  # of one message after another


def _packing(names: Sequence[str], at_rest: Mapping[str, float]) -> Packing:
    """Return what features usually are: least and largest of one message are its mean, others are at rest."""
    same_as, rest = [], []
    for place, name in enumerate(names):
        feature, _, reduction = name.rpartition("_")
        is_reduced = reduction in ("mean", "minimum", "maximum")
        rest.append(at_rest.get(feature if is_reduced else name, 0.0))
        mean = f"{feature}_mean"
        same_as.append(names.index(mean) if is_reduced and mean in names else place)
    return Packing(tuple(same_as), tuple(rest))


PACKINGS: Final = {
    X.name: _packing(NODE_FEATURES, _AT_REST),
    EDGE_ATTR.name: _packing(EDGE_FEATURES, _EDGES_AT_REST),
}
SCHEMA: Final = Schema(
    (
        # Rounded where they are made (kdgat.canbus.features.graphs): streams and stores have the same windows.
        X.stored_as("float16", packed=True),
        EDGE_INDEX.stored_as("int16"),  # a window has at most 10,000 messages
        EDGE_ATTR.stored_as("float16", packed=True),
        Column("y", "graph", "int8", in_batch=True),  # 1 = an injected message is in it, or one was kept off the bus
        Column("node_y", "node", "int8", in_batch=True),  # 1 = the same, of this identifier
        Column("node_id", "node", "int32", in_batch=True),  # arbitration id
        Column("recording", "graph", "int32", indexes=RECORDINGS),
        Column("first_message", "graph", "int64"),  # row in the recording
        Column("start_time", "graph", "float64"),  # s on the bus (kdgat.canbus.features.bus_time)
        Column("end_time", "graph", "float64"),  # s, of the last message
        Column("message_count", "graph", "int32"),
        Column("attack_count", "graph", "int32"),  # injected messages
        Column("kind", "graph", "int8"),  # index into ATTACK_KINDS
        # What the habits of identifiers say (kdgat.canbus.features.suspicion): 0 is no alarm, else the reason of one,
        Column("suspicion", "graph", "int8"),
        Column("suspect", "graph", "int32"),  # and the arbitration id that it speaks against; -1: none
    )
)
