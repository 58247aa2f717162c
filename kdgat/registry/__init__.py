"""Models that were trained, and which of them is in service: a plain directory that several processes may use.

In: files of a model, with metrics and provenance. Out: entries that never change, and a promotion: whether a new model
takes the place of the one in service, as a pure function of what all score on the same data. Read `promotion.py`
first, then `registry.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.registry.entry import Judgement as Judgement
    from kdgat.registry.entry import ModelEntry as ModelEntry
    from kdgat.registry.entry import ServiceChange as ServiceChange
    from kdgat.registry.promotion import Promotion as Promotion
    from kdgat.registry.promotion import judge as judge
    from kdgat.registry.promotion_rule import PromotionRule as PromotionRule
    from kdgat.registry.registry import Registry as Registry
    from kdgat.registry.registry import RegistryError as RegistryError
    from kdgat.registry.registry import find_model as find_model

__all__, __getattr__, __dir__ = lazy_names(__name__)
