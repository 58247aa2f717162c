"""The attacks that can be injected, by name: read where a run is planned, which has no compiler."""

from typing import Final

ATTACKS: Final = ("dos", "fuzzing", "spoofing", "systematic", "replay", "suppression", "masquerade", "sparse")
