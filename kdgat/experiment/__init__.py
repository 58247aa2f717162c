"""A family made of one file: a LightningModule and a function that returns data become a run that survives a cluster.

In: a Python file, or `package.module:name`, that holds an `Experiment`. Out: the same plan, stages, results and report
as those of the built-in families. Read `declaration.py` first, then `config.py`, `family.py` and `stages.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.experiment.declaration import Experiment as Experiment
    from kdgat.experiment.declaration import Stage as Stage

__all__, __getattr__, __dir__ = lazy_names(__name__)
