"""How often an alarm names the attacked identifiers first: a part of results.json."""

from __future__ import annotations

from pydantic import Field

from kdgat.base.configuration import Config
from kdgat.run.results import Count, Value


class HitRates(Config):
    """Shares of windows in which one of the most suspicious identifiers is an attacked one."""

    num_windows: Count = Field(description="attacked windows that raise an alarm")
    hit_at_1: Value = None
    hit_at_3: Value = None
    random_at_1: Value = Field(default=None, description="what identifiers in a random order would hit")
    random_at_3: Value = None


class ExplanationScores(Config):
    """Explanations of a scenario's alarms against the injected, or silenced, identifiers."""

    named_by: str = Field(description="model that orders the identifiers")
    num_attacked_windows: Count = Field(description="those with an identifier that is attacked; at most 20,000")
    detector: HitRates
    clock: HitRates = Field(description="the arrival clock alone, on windows in which it raises an alarm itself")
