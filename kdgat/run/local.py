"""Run a plan in this process, one stage after the other: what a run is, on one page, without Prefect or jobs.

For debugging (a breakpoint in a training step is reached) and for tests. `flows` does the same with a process or a job
per stage; both leave the same output directory behind, and either goes on where the other was stopped.
"""

import logging
from collections.abc import Collection
from pathlib import Path

from kdgat.cluster import AttemptLedger
from kdgat.cluster.decision import Stop
from kdgat.cluster.ending import Because, of_outcome
from kdgat.run.directory import DONE_STATES, OutputDirectory, RunIndex, StageRecord, StageState
from kdgat.run.plan import Run, find_stage, with_dependencies
from kdgat.run.rerun import describe_rerun
from kdgat.stage import Failed, Finished, Paused, RunDirectory
from kdgat.stage.provenance import code_difference
from kdgat.stage.runner import run_stage

logger = logging.getLogger(__name__)


def run_locally(
    run: Run, out: Path | str, only: Collection[str] | None = None, *, quiet: bool = True
) -> dict[str, RunDirectory]:
    """Run the stages of a plan in order, each to its end; return the directories of those that have finished, by name.

    Stages that finished in `out` before are not run again, those that were stopped resume. The first stage that pauses
    or fails is the last one that is run; `run.json` says why. What has finished and is not asked for stays in it.

    Args:
        run: what to execute, as a family plans it.
        out: output directory.
        only: run these stages, by their names in the plan, and what they depend on.
        quiet: leave the stages' log in their directories.

    Raises:
        RunError: if another process trains into this directory, or the plan has no stage of a name in `only`.
        ValueError, OSError: where the inputs of a stage cannot be read.
    """
    output = OutputDirectory(Path(out).absolute())
    chosen = {only} if isinstance(only, str) else only
    wanted = {one.name for one in (run.plan if chosen is None else with_dependencies(run.plan, set(chosen)))}
    finished: dict[str, RunDirectory] = {}
    is_over = False
    output.require_family(run.family)
    with output.lock():
        index = new_index(run)
        output.write_index(index)
        for planned in run.plan:
            record = index.record(planned.name)
            missing = [name for name in planned.depends_on if name not in finished]
            if missing and planned.name in wanted:
                record.state, record.message = StageState.BLOCKED, f"needs {missing[0]}"
            if missing or (is_over and planned.name in wanted):
                continue
            directory, spec = find_stage(run, planned, finished, output)
            if planned.name not in wanted and not _is_whole(directory):
                continue
            if again := directory.reopen():
                logger.warning("%s: %s", planned.name, again)
            record.identity, record.directory = spec.identity(), str(directory.path.relative_to(output.path))
            output.link_latest(index, planned.name)
            if directory.is_finished():
                record.state, record.message = StageState.CACHED, cached_message(directory)
            else:
                directory.create(spec)
                if directory.read_work() is None and (text := describe_rerun(output, index, record)):
                    logger.info("%s runs again: %s", planned.name, text)
                record.state, record.attempts = StageState.RUNNING, record.attempts + 1
                output.write_index(index)
                record.state, record.message = _run(directory, quiet)
                record.message = record.message or again
            is_over = record.state not in DONE_STATES
            if not is_over:
                finished[planned.name] = directory
        output.write_index(index)
    return finished


def finished_stages(run: Run, output: OutputDirectory) -> dict[str, RunDirectory]:
    """Return the directories of the stages of a plan that have finished in an output directory, by name."""
    finished: dict[str, RunDirectory] = {}
    for planned in run.plan:
        if all(name in finished for name in planned.depends_on):
            directory, _ = find_stage(run, planned, finished, output)
            if _is_whole(directory):
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
    """Return what is to be known of a stage that had finished before: by which other code, or nothing."""
    difference = code_difference(directory.provenance_path)
    return f"finished before with other code: {difference}" if difference else ""


def _is_whole(directory: RunDirectory) -> bool:
    return directory.is_finished() and not directory.changed_artifacts()


def _run(directory: RunDirectory, quiet: bool) -> tuple[StageState, str]:
    ledger = AttemptLedger(directory)
    for left in ledger.left_open():
        ledger.abandon(left, "ProcessLost", "its process ended without a word", Because.FILES)
    attempt = ledger.open(None)
    ledger.started(attempt)
    outcome = run_stage(directory, quiet=quiet)
    ledger.close(attempt, of_outcome(outcome, checkpoint=directory.newest_checkpoint()), Stop(outcome.status))
    match outcome:
        case Finished():
            return StageState.FINISHED, ""
        case Paused(reason=reason):
            return StageState.PAUSED, reason
        case Failed() as failed:
            return StageState.FAILED, failed.describe()
