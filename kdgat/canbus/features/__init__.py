"""Windows of consecutive messages as graphs: identifiers are nodes, messages that follow each other are edges.

In: `Messages` of one recording, and a `WindowConfig` (size, stride). Out: `GraphColumns` for a graph store, by
`windows_to_graphs`, or by `OnlineWindows` while messages come. Here are the names and kinds of their columns. Read
`graphs.py` first; what a node and an edge carry of the messages' own past is in `features.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.canbus.features.online import window_chunks as window_chunks
    from kdgat.canbus.features.schema import ATTACK_KINDS as ATTACK_KINDS
    from kdgat.canbus.features.schema import EDGE_FEATURES as EDGE_FEATURES
    from kdgat.canbus.features.schema import FEATURE_VERSION as FEATURE_VERSION
    from kdgat.canbus.features.schema import INJECTED as INJECTED
    from kdgat.canbus.features.schema import INJECTED_VALIDATION as INJECTED_VALIDATION
    from kdgat.canbus.features.schema import NODE_FEATURES as NODE_FEATURES
    from kdgat.canbus.features.schema import PACKINGS as PACKINGS
    from kdgat.canbus.features.schema import RECORDINGS as RECORDINGS
    from kdgat.canbus.features.schema import SCHEMA as SCHEMA
    from kdgat.canbus.features.schema import TRAIN as TRAIN
    from kdgat.canbus.features.schema import VALIDATION as VALIDATION

__all__, __getattr__, __dir__ = lazy_names(__name__)
