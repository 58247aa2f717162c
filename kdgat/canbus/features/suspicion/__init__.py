"""What speaks against identifiers by their own habits, without training and without a profile.

In: times on the bus, identifiers, payloads. Out: which messages and windows are alarms, why, and whom they speak
against. Read `state.py` first.
"""

from kdgat.canbus.features.suspicion.evidence import (
    EXTRA,
    FAST,
    NEW,
    NOTHING,
    PAYLOAD,
    SILENT,
    STRANGERS,
    TOO_MANY,
)
from kdgat.canbus.features.suspicion.state import Suspicions, SuspicionState, of_windows

__all__ = [
    "EXTRA",
    "FAST",
    "NEW",
    "NOTHING",
    "PAYLOAD",
    "SILENT",
    "STRANGERS",
    "TOO_MANY",
    "SuspicionState",
    "Suspicions",
    "of_windows",
]
