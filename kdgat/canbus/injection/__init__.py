"""Virtual vehicles under attack: benign recordings turned into traffic that was never recorded, with attacks put in.

In: attack-free `Messages`, an `InjectionConfig` and a seed. Out: labelled `Messages` of vehicles with other ids, habits
and payloads, in the order in which a real bus would send them, and a pool of attacked windows made of them. Read
`injection.py` first, then `vehicle.py` (how a vehicle is varied) and `attacks.py` (what attackers send).
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.canbus.injection.injection import InjectedPool as InjectedPool
    from kdgat.canbus.injection.injection import clean_stretches as clean_stretches
    from kdgat.canbus.injection.injection import name_variant as name_variant
    from kdgat.canbus.injection.injection import summarise_injection as summarise_injection
    from kdgat.canbus.injection.stretches import TrafficFile as TrafficFile

__all__, __getattr__, __dir__ = lazy_names(__name__)
