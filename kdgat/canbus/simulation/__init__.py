"""A simulated car: what its control units send, how the bus orders it, and what an attacker does to it.

In: a seed and a duration; no recording at all. Out: a labelled synthetic dataset (`kdgat data synth`), for tests and
for people without data. Unlike `kdgat.canbus.injection`, nothing here goes into training by itself. Read `synthetic.py`
first, then `vehicle.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.canbus.simulation.attacks import AttackKind as AttackKind
    from kdgat.canbus.simulation.synthetic import SIZES as SIZES
    from kdgat.canbus.simulation.synthetic import num_recordings as num_recordings
    from kdgat.canbus.simulation.synthetic import write_dataset as write_dataset

__all__, __getattr__, __dir__ = lazy_names(__name__)
