"""The columns of window graphs, beside features and edges."""

from typing import Final

from kdgat.graphs.schema import CORE, EDGE_ATTR, Column, Schema

# The stores of a run, beside one per test scenario.
TRAIN, VALIDATION = "train", "validation"
INJECTED, INJECTED_VALIDATION = "injected", "injected_validation"

RECORDINGS: Final = "recordings"  # the names that `recording` indexes, among the attributes of a store

SCHEMA: Final = Schema(
    (
        *CORE,
        EDGE_ATTR,
        Column("y", "graph", "int8", in_batch=True),  # 1 = the window holds an attack
        Column("node_y", "node", "int8", in_batch=True),  # 1 = the node sent an injected message
        Column("node_id", "node", "int32", in_batch=True),  # arbitration id
        Column("recording", "graph", "int32", indexes=RECORDINGS),
        Column("first_message", "graph", "int64"),  # row in the recording
        Column("start_time", "graph", "float64"),  # s
        Column("message_count", "graph", "int32"),
        Column("attack_count", "graph", "int32"),  # injected messages
    )
)
