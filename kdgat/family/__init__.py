"""What a family of models is to the rest: planning, telling, and optional faces.

In: the name of a family. Out: the object that its package exports as `family.FAMILY`, by which the commands, flows and
reports of every family are written once. Compute is not here: `kdgat stage run` calls `<package>.stages.run`.
Read `protocol.py` first; docs/architecture.md shows what a new family consists of.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.family.configuration import family_config as family_config
    from kdgat.family.configuration import read_config as read_config
    from kdgat.family.protocol import DataSize as DataSize
    from kdgat.family.protocol import Detects as Detects
    from kdgat.family.protocol import Family as Family
    from kdgat.family.protocol import Option as Option
    from kdgat.family.protocol import PlanTable as PlanTable
    from kdgat.family.protocol import ScoringRequest as ScoringRequest
    from kdgat.family.registry import find_family as find_family
    from kdgat.family.space import Space as Space
    from kdgat.family.summary import flattened as flattened
    from kdgat.family.summary import read_runs as read_runs
    from kdgat.family.summary import read_summary as read_summary
    from kdgat.family.summary import verdict as verdict
    from kdgat.family.sweep import Sweep as Sweep

__all__, __getattr__, __dir__ = lazy_names(__name__)
