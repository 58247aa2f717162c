"""Run a plan in this process, one stage after the other: what a run is, on one page, without Prefect or jobs.

For debugging (a breakpoint in a training step is reached) and for tests. `flows` does the same with a process or a job
per stage; both leave the same output directory behind, and either goes on where the other was stopped.
"""

import logging
from collections.abc import Collection
from pathlib import Path

from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState
from kdgat.run.plan import PlannedStage, Run, create_stage, with_dependencies
from kdgat.stage.directory import RunDirectory
from kdgat.stage.outcome import Failed, Finished, Paused
from kdgat.stage.provenance import code_difference
from kdgat.stage.runner import run_stage

logger = logging.getLogger(__name__)


def run_locally(
    run: Run, out: Path | str, only: Collection[str] | None = None, *, quiet: bool = True
) -> dict[str, RunDirectory]:
    """Run the stages of a plan in order, each to its end; return the directories of those that have finished, by name.

    Stages that finished in `out` before are not run again, those that were stopped resume. The first stage that pauses
    or fails is the last one that is run; `run.json` says why.

    Args:
        run: what to execute, as a family plans it.
        out: output directory.
        only: run these stages, by their names in the plan, and what they depend on.
        quiet: leave the stages' log in their directories.

    Raises:
        RunError: if another process trains into this directory.
        ValueError, OSError: where the inputs of a stage cannot be read.
    """
    output = OutputDirectory(Path(out).absolute())
    plan = run.plan if only is None else with_dependencies(run.plan, set(only))
    finished: dict[str, RunDirectory] = {}
    with output.lock():
        index = new_index(run)
        for planned in plan:
            record = index.record(planned.name)
            directory, record.identity = create_stage(run, planned, finished, output)
            record.directory = str(directory.path.relative_to(output.path))
            record.state = _run(planned, directory, record, quiet)
            output.write_index(index)
            if record.state not in (StageState.FINISHED, StageState.CACHED):
                break
            finished[planned.name] = directory
    return finished


def new_index(run: Run) -> RunIndex:
    """Return the index of a run of which no stage has started."""
    records = [
        StageRecord(name=p.name, stage=p.stage, scale=p.scale, seed=p.seed, depends_on=list(p.depends_on))
        for p in run.plan
    ]
    return RunIndex(family=run.family, config=run.config.model_dump(mode="json"), stages=records)


def cached_message(directory: RunDirectory) -> str:
    """Say that a stage had finished before, and whether that was by other code."""
    difference = code_difference(directory.provenance_path)
    return f"{directory.path.name} had finished before" + (f", with other code: {difference}" if difference else "")


def _run(planned: PlannedStage, directory: RunDirectory, record: StageRecord, quiet: bool) -> StageState:
    if directory.is_finished():
        logger.info("%s", cached_message(directory))
        return StageState.CACHED
    record.attempts += 1
    match run_stage(directory, quiet=quiet):
        case Finished():
            return StageState.FINISHED
        case Paused(reason=reason):
            record.message = reason
            return StageState.PAUSED
        case Failed(kind=kind, evidence=evidence):
            record.message = f"{kind}: {evidence}"
            return StageState.FAILED
