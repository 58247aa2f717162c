"""The columns of window graphs, beside features and edges."""

from collections.abc import Mapping, Sequence
from typing import Final

from kdgat.canbus.features.feature_names import EDGE_FEATURES, NODE_FEATURES
from kdgat.graphs.packing import Packing
from kdgat.graphs.schema import EDGE_ATTR, EDGE_INDEX, Column, Schema, X

# The stores of a run, beside one per test scenario.
TRAIN, VALIDATION = "train", "validation"
INJECTED, INJECTED_VALIDATION = "injected", "injected_validation"

RECORDINGS: Final = "recordings"  # the names that `recording` indexes, among the attributes of a store

# What a window is attacked by, as far as the recording says.
ATTACK_KINDS: Final = (
    "none", "dos", "fuzzing", "spoofing", "systematic", "replay", "suppression", "masquerade", "sparse", "unknown",
)  # fmt: skip

# Values of features that say nothing of most nodes or edges; of all others it is 0.
_AT_REST: Final = {
    **dict.fromkeys(("early", "overdue", "phase", "frozen", "still"), -4.0),  # kdgat.canbus.features.timer.REST
    **dict.fromkeys(("period_known", "regular", "payload_bytes"), 1.0),
}
_EDGES_AT_REST: Final = {"count": 1.0}  # of one message after another


def _packing(names: Sequence[str], at_rest: Mapping[str, float]) -> Packing:
    """State what features usually are: least and largest of one message are its mean, others are at rest."""
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
        # Rounded where they are made (kdgat.canbus.features.rounding): streams and stores have the same windows.
        X.stored_as("float16", packed=True),
        EDGE_INDEX.stored_as("int16"),  # a window has at most 10,000 messages
        EDGE_ATTR.stored_as("float16", packed=True),
        Column("y", "graph", "int8", in_batch=True),  # 1 = an injected message is in it, or one was kept off the bus
        Column("node_y", "node", "int8", in_batch=True),  # 1 = the same, of this identifier
        Column("node_id", "node", "int32", in_batch=True),  # arbitration id
        Column("recording", "graph", "int32", indexes=RECORDINGS),
        Column("first_message", "graph", "int64"),  # row in the recording
        Column("start_time", "graph", "float64"),  # s
        Column("end_time", "graph", "float64"),  # s, of the last message
        Column("message_count", "graph", "int32"),
        Column("attack_count", "graph", "int32"),  # injected messages
        Column("kind", "graph", "int8"),  # index into ATTACK_KINDS
        Column("early", "graph", "float32"),  # highest margin of the arrival clock, log2; -9: none
        Column("overdue", "graph", "float32"),
    )
)
