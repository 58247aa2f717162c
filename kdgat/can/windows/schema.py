"""The columns of window graphs, beside features and edges."""

from typing import Final

from kdgat.graphs.schema import CORE, EDGE_ATTR, Column, Schema

# The stores of a run, beside one per test scenario.
TRAIN, VALIDATION = "train", "validation"
INJECTED, INJECTED_VALIDATION = "injected", "injected_validation"

RECORDINGS: Final = "recordings"  # the names that `recording` indexes, among the attributes of a store

# What a window is attacked by, as far as the recording says.
ATTACK_KINDS: Final = (
    "none", "dos", "fuzzing", "spoofing", "systematic", "replay", "suppression", "masquerade", "sparse", "unknown",
)  # fmt: skip

SCHEMA: Final = Schema(
    (
        *CORE,
        EDGE_ATTR,
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
