"""What a stage is: a process with a contract, run the same by hand, by a flow and in a job.

In: `spec.json` in a run directory. Out: `outcome.json`, artifacts, and an exit status; a stage that was killed is
resumed from its newest checkpoint by running it again. Nothing here knows of families, clusters or flows. Read
`spec.py` first, then `directory.py`, `outcome.py` and `runner.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.stage.directory import RunDirectory as RunDirectory
    from kdgat.stage.directory import input_path as input_path
    from kdgat.stage.errors import EnvironmentFaultError as EnvironmentFaultError
    from kdgat.stage.errors import RunDirectoryError as RunDirectoryError
    from kdgat.stage.errors import StageBusyError as StageBusyError
    from kdgat.stage.errors import StageInputError as StageInputError
    from kdgat.stage.outcome import Failed as Failed
    from kdgat.stage.outcome import FailureKind as FailureKind
    from kdgat.stage.outcome import Finished as Finished
    from kdgat.stage.outcome import Outcome as Outcome
    from kdgat.stage.outcome import Paused as Paused
    from kdgat.stage.process import garbage_kept as garbage_kept
    from kdgat.stage.provenance import package_version as package_version
    from kdgat.stage.spec import StageInput as StageInput
    from kdgat.stage.spec import StageSpec as StageSpec
    from kdgat.stage.work import Work as Work

__all__, __getattr__, __dir__ = lazy_names(__name__)
