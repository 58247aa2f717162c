"""One stage, watched to its end from a terminal or by a flow: as jobs of a site, or as processes of this machine."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from flows.attempts import (
    AttemptBody,
    AttemptContext,
    AttemptResult,
    AttemptRunner,
    LocalAttempts,
    Stage,
    run_to_end,
)
from flows.cancellation import in_any_thread, stopping_with_prefect
from flows.node_image import NodeImage, may_compute_on_gpu
from flows.signals import stop_on_signals
from flows.slurm_attempts import SlurmAttempts
from kdgat.base import validate_config
from kdgat.base.configuration import numbers_of
from kdgat.cluster import AttemptRecord, ResourceRequest, Site, StopRequest
from kdgat.cluster.attempts import finished_outcome
from kdgat.cluster.child import OnLine
from kdgat.cluster.forecast import Job
from kdgat.cluster.request import request_of_job
from kdgat.cluster.site import require_usable
from kdgat.cluster.usage import read_usages, usage_path
from kdgat.run import OutputDirectory
from kdgat.run.progress import describe_progress
from kdgat.stage import Failed, Finished, Outcome, Paused, RunDirectory, StageSpec
from kdgat.stage.owner import own

PROGRESS_INTERVAL_S: Final = 10.0


def run_single_stage(
    path: Path,
    site: Site,
    command_line: ResourceRequest,
    *,
    quiet: bool = False,
    like_stage: str | None = None,
    begins_anew: bool = False,
    requests: Mapping[str, ResourceRequest] | None = None,
    attempt_context: AttemptContext | None = None,
    on_line: OnLine | None = None,
) -> Outcome:
    """Run the stage described by `path`/spec.json on a site until it finishes, fails or is stopped.

    Where the directory lies in the output directory of a run, its jobs ask for what the run's configuration says.

    Args:
        path: run directory, on a filesystem that the nodes share.
        site: a cluster, or this machine.
        command_line: what the jobs ask for instead of what configuration and site say.
        quiet: leave out the stage's log and its progress; what goes wrong is said all the same.
        like_stage: the stage whose resources it asks for; by default its own.
        begins_anew: the next command makes another directory, so that a job must not outlive this one.
        requests: what stages ask for, where the directory lies in no run that says it.
        attempt_context, on_line: what shows attempts and messages to people; by default this terminal.

    Raises:
        RunDirectoryError: if there is no valid spec.
        StageBusyError, RunError: if another process watches this stage, or trains into its output directory.
        SiteError, UserError: if jobs cannot be submitted from here, or ask for more than the site grants.
        ImageError: if the site's image is not there, or is not one of this kdgat.
    """
    directory = RunDirectory(path.absolute())
    spec = directory.read_spec()
    log = on_line or _log
    if begins_anew:
        site = site.model_copy(update={"on_lost_flow": "stop"})
    runner: AttemptRunner = LocalAttempts(_environment(spec))
    resources, history = None, _usage_path(directory, site)
    if site.scheduler == "slurm":
        if requests is None:
            requests = _requests(directory)
        job = Job.in_directory(directory, history or Path())
        usages = read_usages(history.parent) if history is not None else []
        made = request_of_job(job, usages, requests, site, command_line, like_stage=like_stage)
        resources = made.resources
        for sentence in made.changes:
            log(f"{directory.path.name} {sentence}")
        require_usable(site)
        image = NodeImage(site)
        image.check(log)
        if may_compute_on_gpu(spec.config, spec.execution):
            image.check_gpus([resources], log)
        runner = SlurmAttempts(site, directory.path / "slurm", _environment(spec), image)
    stop = StopRequest()
    with (
        site.creating_files(),
        _watching_alone(directory),
        stop_on_signals(stop, site, in_any_thread()),
        stopping_with_prefect(stop),
        contextlib.closing(runner),
    ):
        if finished_outcome(directory) is not None and (text := directory.reopen()):
            log(f"{directory.path.name}: {text}")
        if (outcome := finished_outcome(directory)) is not None:
            if not quiet:
                log(f"{directory.path.name} is finished already")
            return outcome
        if resources is not None and not quiet:
            log(f"{directory.path.name} on {site.name}: {resources.describe()}")
        conclusion = run_to_end(
            Stage(
                directory,
                runner=runner,
                stop=stop,
                attempt_context=attempt_context or _Terminal(quiet).attempt_context,
                on_line=log,
                resources=resources,
                site=site,
                usage_path=history,
            )
        )
    if on_line is not None:
        return conclusion.outcome
    _log(_describe(conclusion.outcome, directory), quiet and isinstance(conclusion.outcome, Finished))
    return conclusion.outcome


class _Terminal:
    """Print what an attempt does, logs, and how far it is."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._next_progress = 0.0

    def attempt_context(self, record: AttemptRecord, body: AttemptBody) -> AttemptResult:
        """Run an attempt."""
        return body(
            lambda line: _log(line, self.quiet), self._progress, lambda name, message: _log(message, self.quiet)
        )

    def _progress(self, progress: dict[str, Any]) -> None:
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_INTERVAL_S
            _log(describe_progress(progress), self.quiet)


@contextlib.contextmanager
def _watching_alone(directory: RunDirectory) -> Iterator[None]:
    """Be the only one who makes attempts at this stage: somebody else's jobs would be taken for left behind."""
    run = OutputDirectory(directory.path.parents[1])
    with contextlib.ExitStack() as stack:
        if directory.path.parent == run.stages_path and run.index_path.is_file():
            stack.enter_context(run.lock())
        stack.enter_context(own(directory.watcher_path.with_suffix(".lock"), directory.watcher_path))
        yield


def _requests(directory: RunDirectory) -> dict[str, ResourceRequest]:
    """Read what the run that the directory belongs to asks for; nothing where it belongs to none."""
    run = OutputDirectory(directory.path.parents[1])
    if not run.index_path.is_file():
        return {}
    stated = run.read_index().config.get("resources", {})
    return {stage: validate_config(ResourceRequest, request) for stage, request in stated.items()}


def _usage_path(directory: RunDirectory, site: Site) -> Path | None:
    """Return the file of the run that the directory belongs to; None where it belongs to none."""
    run = OutputDirectory(directory.path.parents[1])
    return usage_path(site, run.path) if run.index_path.is_file() else None


def _environment(spec: StageSpec) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(max(numbers_of(spec.config, "num_threads"), default=1))}


def _describe(outcome: Outcome, directory: RunDirectory) -> str:
    match outcome:
        case Finished():
            return f"finished: {outcome.describe_metrics()}"
        case Paused(checkpoint=checkpoint, reason=reason):
            return f"paused: {reason}; the same command goes on from {checkpoint or 'the start of the stage'}"
        case Failed():
            return f"failed: {outcome.describe()}\nlog: {directory.log_path}"


def _log(text: str, quiet: bool = False) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)
