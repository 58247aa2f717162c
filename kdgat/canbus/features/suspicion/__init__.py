"""What speaks against identifiers by their own habits, without training and without a profile.

In: times on the bus, identifiers, payloads. Out: which messages and windows are alarms, why, and whom they speak
against. Read `state.py` first.
"""

from kdgat.canbus.features.suspicion.evidence import Reason, kind_of_reason
from kdgat.canbus.features.suspicion.known import Known
from kdgat.canbus.features.suspicion.state import Suspicions, SuspicionState, of_windows

__all__ = [
    "Known",
    "Reason",
    "SuspicionState",
    "Suspicions",
    "kind_of_reason",
    "of_windows",
]
