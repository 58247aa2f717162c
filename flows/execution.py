"""Which stage may start, which is done: the state of one run, kept in `run.json` for whoever watches."""

import logging
import resource
import threading
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flows.attempts import AttemptRunner, Conclusion, LocalAttempts
from flows.log_tail import remove_old_output
from flows.node_image import NodeImage, check_gpus_of_run
from kdgat.base import num_usable_cores
from kdgat.base.configuration import numbers_of
from kdgat.base.files import list_folder
from kdgat.base.place import describe_os_error
from kdgat.cluster import AttemptLedger, Expectation, ResourceRequest, Resources, Site
from kdgat.cluster.forecast import Job
from kdgat.cluster.request import request_of_job, stage_resources
from kdgat.cluster.usage import read_usages, usage_path
from kdgat.family import find_family
from kdgat.run import OutputDirectory, PlannedStage, Run, RunError, StageRecord, StageState
from kdgat.run.directory import DONE_STATES, ENDED_STATES
from kdgat.run.forecast import forecast
from kdgat.run.kept_plan import KeptPlan, describe_differences, describe_other_epochs
from kdgat.run.local import cached_message, new_index
from kdgat.run.plan import create_stage
from kdgat.run.rerun import describe_rerun
from kdgat.stage import Failed, FailureKind, Finished, Paused, RunDirectory, RunDirectoryError
from kdgat.stage.faults import is_environment_fault
from kdgat.stage.gpus import VISIBLE_VARIABLE, visible_gpus

if TYPE_CHECKING:
    from flows.pool import Pool
    from flows.slurm_attempts import SlurmAttempts

logger = logging.getLogger(__name__)

FILES_PER_JOB: Final = 8  # 2 were measured with thirty jobs at once; one that is submitted or read needs some more
OWN_FILES: Final = 160  # of the flow itself, its Prefect client and what is opened for a moment


class Execution:
    """Walk a plan in any order its dependencies allow; safe to use from several threads."""

    def __init__(
        self, run: Run, output: OutputDirectory, site: Site, command_line: ResourceRequest, num_pool_workers: int = 0
    ) -> None:
        output.require_family(run.family)
        self.output = output
        self.site = site
        self.command_line = command_line
        self.num_pool_workers = num_pool_workers
        self.usage_path = usage_path(site, output.path)
        self.image = NodeImage(site)
        self.image.check()  # here, before anything is written or submitted
        check_gpus_of_run(run, site, command_line)
        self.finished: dict[str, RunDirectory] = {}
        self.gpus = visible_gpus() if site.scheduler == "local" and may_take_gpus(run) else ()
        self._gpus_of: dict[str, tuple[str, ...]] = {}  # by name of a stage that has run
        self._lock = threading.Lock()
        self._changed = threading.Event()
        is_cluster = site.scheduler == "slurm"
        if is_cluster:
            remove_old_output(output.slurm_path)
        # What a command that is gone had begun: jobs of stages that this one has, or no longer has.
        found = map(RunDirectory, filter(Path.is_dir, list_folder(output.stages_path)))
        self._left = [directory for directory in found if _has_open_attempts(directory)]
        self.run, self._plan = self._kept(run) if is_cluster else (run, KeptPlan.of_run(run))
        if told := describe_other_epochs(output, self.run):
            logger.warning("%s", told)
        self._plan.write(output)
        self.run = self._plan.noting_inputs(self.run, output)
        self.index = new_index(self.run)
        output.write_index(self.index)
        self._jobs: SlurmAttempts | None = None
        if is_cluster:
            from flows import slurm_attempts  # Dask: seconds, of which a run of this machine has no use

            self._jobs = slurm_attempts.SlurmAttempts(site, output.slurm_path, self._environment(), self.image)

    def _kept(self, run: Run) -> tuple[Run, KeptPlan]:
        """Choose the plan: that of the jobs which are under way, else the one that was made now."""
        kept = KeptPlan.read(self.output) if self._left or _is_interrupted(self.output) else None
        if kept is not None and (differences := kept.differences(run)):
            logger.warning("%s: %s", self.output.path, describe_differences(differences))
            return kept.run(find_family(kept.family), run), kept
        plan = KeptPlan.of_run(run)
        plan.inputs = {} if kept is None else kept.inputs
        return run, plan

    def startable(self, num_free: int) -> list[PlannedStage]:
        """Choose up to `num_free` stages whose dependencies are done, in the order of the plan."""
        with self._lock:
            ready = [
                planned
                for planned in self.run.plan
                if self._state(planned.name) == StageState.PLANNED
                and all(self._state(name) in DONE_STATES for name in planned.depends_on)
            ][: max(0, num_free)]
            for planned in ready:
                self._update(planned.name, state=StageState.RUNNING)
            return ready

    def open_directory(self, planned: PlannedStage) -> RunDirectory:
        """Make the run directory of a stage; its name holds the identity, so a changed stage gets a new one."""
        directory, identity = create_stage(self.run, planned, self.finished, self.output)
        with self._lock:
            self._update(planned.name, directory=str(directory.path.relative_to(self.output.path)), identity=identity)
            self.output.link_latest(self.index, planned.name)
        return directory

    def conclude(self, planned: PlannedStage, directory: RunDirectory, conclusion: Conclusion) -> None:
        """Note how a stage ended; no attempts means that it had finished before."""
        is_new = conclusion.attempts > 0
        note = "" if is_new else cached_message(directory)  # asks git: not while others wait for the lock
        with self._lock:
            match conclusion.outcome:
                case Finished():
                    self.finished[planned.name] = directory
                    state, message = (StageState.FINISHED if is_new else StageState.CACHED), note
                case Paused(reason=reason):
                    state, message = StageState.PAUSED, reason
                case Failed() as failed:
                    state, message = StageState.FAILED, failed.describe()
            self._update(planned.name, state=state, message=message, attempts=conclusion.attempts)

    def note(self, planned: PlannedStage, text: str) -> None:
        """Note what goes on with a stage that runs, for whoever watches: queued, started, lost, again."""
        with self._lock:
            self._update(planned.name, message=text)

    def fail(self, planned: PlannedStage, error: Exception, state: StageState = StageState.FAILED) -> str:
        """Note, and return, why a stage could not even be started, for instance that a recording cannot be read."""
        text = describe_os_error(error) if isinstance(error, OSError) else str(error)
        if is_environment_fault(error):
            text = f"{FailureKind.ENVIRONMENT}: {text}"
        with self._lock:
            self._update(planned.name, state=state, message=text)
        return text

    def fail_ended(self, ended: Set[str]) -> None:
        """Note stages whose task run ended without a word, for instance because the Prefect API was lost."""
        with self._lock:
            for name in ended:
                if self._state(name) == StageState.RUNNING:
                    self._update(name, state=StageState.FAILED, message="its task run ended without an outcome")

    def block_rest(self, reason: str) -> None:
        """Give up every stage that has not started."""
        with self._lock:
            for planned in self.run.plan:
                if self._state(planned.name) == StageState.PLANNED:
                    self._update(planned.name, state=StageState.BLOCKED, message=reason)

    def block_unreachable(self) -> None:
        """Give up every stage that waits for one that will not finish."""
        with self._lock:
            for planned in self.run.plan:
                lost = [n for n in planned.depends_on if self._state(n) in ENDED_STATES and not self._is_done(n)]
                if lost and self._state(planned.name) == StageState.PLANNED:
                    self._update(planned.name, state=StageState.BLOCKED, message=f"needs {lost[0]}")

    def describe_rerun(self, planned: PlannedStage) -> str:
        """Say why a stage that ran before runs again; empty of one that is new."""
        return describe_rerun(self.output, self.index, self.index.record(planned.name))

    def describe_left(self) -> str:
        """Say how long the run still takes; empty where it is over."""
        return forecast(self.output, self.index, self.usage_path.parent).describe()

    def num_running(self) -> int:
        """Count the stages that run now."""
        return len(self.in_state(StageState.RUNNING))

    def is_over(self) -> bool:
        """Tell whether every stage has ended in one way or another."""
        return all(record.state in ENDED_STATES for record in self.index.stages)

    def in_state(self, *states: StageState) -> list[StageRecord]:
        """List the stages in one of these states, in the order of the plan."""
        return [record for record in self.index.stages if record.state in states]

    def wait_for_change(self, timeout_s: float) -> None:
        """Wait until a stage starts or ends, at most `timeout_s` seconds."""
        self._changed.wait(timeout_s)
        self._changed.clear()

    def has_job(self, directory: RunDirectory) -> bool:
        """Tell whether another command has left a job that may be at this stage at this moment."""
        return self._jobs is not None and bool(AttemptLedger(directory).left_open())

    def pool(self) -> "Pool":
        """Return what makes the parts of a stage ahead of it."""
        from flows.pool import Pool  # Prefect and Dask

        return Pool(self.site, self.num_pool_workers, self.output.slurm_path, self.image, self._environment())

    def runner(self, planned: PlannedStage) -> AttemptRunner:
        """Return what runs the attempts at a stage: child processes here, or jobs of the site."""
        if self._jobs is not None:
            return self._jobs
        environment = self._environment()
        if self.gpus:
            environment[VISIBLE_VARIABLE] = ",".join(self._gpus_for(planned))
        return LocalAttempts(environment)

    def cancel_orphans(self) -> list[str]:
        """Cancel the jobs of stages that are not in the plan, or are there with another identity; say which."""
        if self._jobs is None:
            return []
        with self._lock:
            taken = {record.directory for record in self.index.stages}
            # Their identity is known once those are done that they depend on. Folders are named by the stage, not by
            # its name in the plan, which in a sweep has the fold and the trial.
            undecided = {
                f"{record.stage}-{record.scale}-seed{record.seed}"
                for record in self.index.stages
                if record.directory is None
            }
            orphans = [
                directory
                for directory in self._left
                if str(directory.path.relative_to(self.output.path)) not in taken
                and directory.path.name.rpartition("-")[0] not in undecided
            ]
            self._left = [directory for directory in self._left if directory not in orphans]
        return [self._jobs.cancel_orphan(directory) for directory in orphans]

    def close(self) -> None:
        """Give back what the attempts shared; jobs go on."""
        if self._jobs is not None:
            self._jobs.close()

    def resources(self, planned: PlannedStage) -> Resources | None:
        """Return what the job of a stage asks for before history is looked at; None where it is no job."""
        if self.site.scheduler == "local":
            return None
        return stage_resources(planned.stage, self.run.resources, self.site, self.command_line)

    def adapted_resources(self, planned: PlannedStage, directory: RunDirectory) -> tuple[Resources | None, list[str]]:
        """Return what the job asks for in the light of earlier attempts, and a sentence for each change."""
        if self.site.scheduler == "local":
            return None, []
        paths = {name: one.resolve(directory.path) for name, one in directory.read_spec().inputs.items()}
        stated = self.run.config.stated_amounts(planned.stage)
        assumed: Mapping[str, Expectation] = {}
        unknown = []
        try:
            assumed = find_family(self.run.family).assume(replace(self.run, plan=[planned]), paths)
        except (OSError, ValueError) as error:  # the stage itself says what is wrong with its inputs, and is tried
            unknown = [f"asks for what is known without its inputs, which cannot be looked at: {error}"]
        made = request_of_job(
            Job.in_directory(directory, self.usage_path),
            read_usages(self.usage_path.parent),
            self.run.resources,
            self.site,
            self.command_line,
            assumed={key: one for key, one in assumed.get(planned.name, {}).items() if key not in stated},
        )
        return made.resources, [*made.changes, *unknown]

    def _environment(self) -> dict[str, str]:
        # The children need to know their share of the processor.
        return {"OMP_NUM_THREADS": str(self.run.num_threads)}

    def _gpus_for(self, planned: PlannedStage) -> tuple[str, ...]:
        """Choose the GPUs on which the fewest stages run: one, or as many as the stage has ranks."""
        name = planned.name
        with self._lock:
            running = [record.name for record in self.in_state(StageState.RUNNING) if record.name != name]
            taken = Counter(gpu for other in running for gpu in self._gpus_of.get(other, ()))
            self._gpus_of[name] = tuple(sorted(self.gpus, key=lambda gpu: taken[gpu])[: num_ranks_of(planned)])
            return self._gpus_of[name]

    def _state(self, name: str) -> StageState:
        return self.index.record(name).state

    def _is_done(self, name: str) -> bool:
        return self._state(name) in DONE_STATES

    def _update(self, name: str, **changes: object) -> None:
        record = self.index.record(name)
        for key, value in changes.items():
            setattr(record, key, value)
        self.output.note_index(self.index)
        self._changed.set()


def _has_open_attempts(directory: RunDirectory) -> bool:
    """Tell whether a command has left attempts at a stage, which may be of another plan or of a newer kdgat."""
    try:
        return bool(AttemptLedger(directory).left_open())
    except RunDirectoryError as error:
        logger.warning("whether a job is left of %s is not known: %s", directory.path.name, error)
        return False


def _is_interrupted(output: OutputDirectory) -> bool:
    """Tell whether the command before ended without a word while a stage trained: killed between two of its jobs."""
    try:
        running = [one for one in output.read_index().stages if one.state == StageState.RUNNING and one.directory]
        return any(output.stage_directory(one).newest_checkpoint() is not None for one in running)
    except RunError:
        return False


def num_parallel_stages(
    num_threads: int, site: Site, wanted: int | None = None, num_gpus: int = 0, num_ranks: int = 1
) -> int:
    """Return how many stages run side by side: as wanted, else as many as the site allows.

    On this machine that is as many as it has processors for, and where it has GPUs, one on each; of stages of several
    ranks, accordingly fewer.
    """
    if site.scheduler == "slurm":
        return watchable_jobs(wanted or site.limits.jobs)
    by_cores = max(1, num_usable_cores() // (num_threads * num_ranks))
    return wanted or (min(by_cores, max(1, num_gpus // num_ranks)) if num_gpus else by_cores)


def num_ranks_of(planned: PlannedStage) -> int:
    """Return how many processes a stage is configured to have."""
    return max(numbers_of(planned.config, "num_ranks"), default=1)


def may_take_gpus(run: Run) -> bool:
    """Return whether a stage of a run takes a GPU where it sees one."""
    return any(run.config.training_for(stage).accelerator != "cpu" for stage in run.config.trained_stages())


def as_output(out: Path | str) -> OutputDirectory:
    """Return the output directory, as an absolute path: the children run in it whatever their own folder is."""
    return OutputDirectory(Path(out).absolute())


def watchable_jobs(num_jobs: int) -> int:
    """Raise this process's limit of open files as far as watching `num_jobs` needs; return how many it suffices for.

    Never more than is needed: Slurm hands the limit on to the jobs. A process that runs out of files can watch none of
    its jobs, not only the one too many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OWN_FILES + num_jobs * FILES_PER_JOB
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return num_jobs
    granted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    if granted == needed:
        return num_jobs
    suffices_for = max(1, (granted - OWN_FILES) // FILES_PER_JOB)
    logger.warning(
        "%d open files are allowed here (ulimit -Hn), enough to watch %d jobs at once instead of %d",
        hard,
        suffices_for,
        num_jobs,
    )
    return suffices_for
