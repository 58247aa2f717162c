"""A run of a family: what its plan consists of, its output directory, and how far it is.

In: a family's configuration and plan, with inputs as names. Out: specs with hashes for `kdgat.stage`, and an output
directory with `run.json`, the index of the stages; who executes them (a flow, this process) is left open. Read
`plan.py` first, then `directory.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.run.config import RunConfig as RunConfig
    from kdgat.run.directory import OutputDirectory as OutputDirectory
    from kdgat.run.directory import RunError as RunError
    from kdgat.run.directory import StageRecord as StageRecord
    from kdgat.run.directory import StageState as StageState
    from kdgat.run.end import RunEnd as RunEnd
    from kdgat.run.finished import EVALUATION as EVALUATION
    from kdgat.run.finished import WEIGHTS as WEIGHTS
    from kdgat.run.finished import FinishedRun as FinishedRun
    from kdgat.run.local import run_locally as run_locally
    from kdgat.run.measure import Interval as Interval
    from kdgat.run.measure import Measure as Measure
    from kdgat.run.plan import PlannedStage as PlannedStage
    from kdgat.run.plan import Run as Run
    from kdgat.run.table import Table as Table
    from kdgat.run.table import counted as counted

__all__, __getattr__, __dir__ = lazy_names(__name__)
