"""What to do after an attempt ended: a pure function, so that every answer can be read in a table of tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kdgat.cluster.container import IMAGE_CHANGED
from kdgat.cluster.ending import UNCOUNTED, AttemptEnd, EndKind
from kdgat.cluster.resources import Resources, format_memory, format_walltime
from kdgat.cluster.site import Site
from kdgat.stage.outcome import FailureKind

MAX_STALE_ATTEMPTS: Final = 3  # attempts in a row that leave no new checkpoint
MAX_FRUITLESS_ATTEMPTS: Final = 12  # likewise, though each got more memory, a longer walltime or a bigger GPU
MAX_NOT_STARTED: Final = 2  # jobs in a row that end before their worker reports
MAX_UNREACHABLE: Final = 20  # with the delays below 70 minutes, and as long as sbatch takes to give up each time
FIRST_DELAY_S: Final = 5.0
IMAGE_DELAY_S: Final = 15.0  # for a node that a network filesystem still shows the file that was there before
LONGEST_DELAY_S: Final = 300.0
MEMORY_GROWTH: Final = 1.5
WALLTIME_GROWTH: Final = 2.0
# What the job's error file says when another try on another node would say the same.
BROKEN_ENVIRONMENT: Final = ("ModuleNotFoundError", "ImportError")


@dataclass(frozen=True)
class AttemptLimits:
    """How far resources may grow, and what the site wants done about a job that does not start."""

    max_walltime_s: int | None = None
    max_memory_mib: int | None = None
    bigger_gpu_types: tuple[str, ...] = ()
    on_start_timeout: Literal["wait", "stop"] = "wait"

    @classmethod
    def of(cls, site: Site) -> "AttemptLimits":
        """Take them from a site."""
        return cls(
            max_walltime_s=site.limits.walltime_s,
            max_memory_mib=site.limits.memory_mib,
            bigger_gpu_types=site.bigger_gpu_types,
            on_start_timeout=site.on_start_timeout,
        )


@dataclass(frozen=True)
class History:
    """What came before the attempt that just ended, in this run of the flow."""

    resources: Resources | None = None  # of that attempt; None: a process on this machine
    ends: tuple[AttemptEnd, ...] = ()  # earlier ones, oldest first
    excluded_nodes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Retry:
    """Start the stage again, from its newest checkpoint."""

    reason: str
    resources: Resources | None
    excluded_nodes: frozenset[str] = field(default_factory=frozenset)
    delay_s: float = 0.0


@dataclass(frozen=True)
class Wait:
    """Leave the job in the queue."""

    reason: str


@dataclass(frozen=True)
class Stop:
    """Do not start the stage again by itself."""

    reason: str


Decision = Retry | Wait | Stop


def decide(end: AttemptEnd, history: History, limits: AttemptLimits) -> Decision:
    """Choose what follows the end of an attempt; the sentence is for whoever reads it in the Prefect UI.

    Without progress every sequence of ends comes to a `Stop`, except for preemptions, which may go on for ever.

    >>> lost = AttemptEnd(EndKind.NODE_FAILURE, "node o0123 failed", node="o0123", checkpoint="checkpoints/7.pt")
    >>> decide(lost, History(), AttemptLimits()).reason
    'again from checkpoints/7.pt, without node o0123'
    """
    decision = _choose(end, history, limits)
    num_stale = _trailing(end, history, lambda one: not one.made_progress)
    if isinstance(decision, Retry) and num_stale >= MAX_FRUITLESS_ATTEMPTS:
        return Stop(f"no progress: {num_stale} attempts in a row left no new checkpoint; the last one: {end.message}")
    return decision


def _choose(end: AttemptEnd, history: History, limits: AttemptLimits) -> Decision:
    match end.kind:
        case EndKind.FINISHED:
            return Stop("finished")
        case EndKind.FAILED:
            return _after_failure(end, history, limits)
        case EndKind.CANCELLED:
            return Stop(
                f"somebody cancelled job {end.job_id}, so it is not started again; the same command goes on from "
                f"{end.checkpoint or 'the start of the stage'}"
            )
        case EndKind.REFUSED if history.excluded_nodes:
            return Retry(
                f"no node is left without {', '.join(sorted(history.excluded_nodes))}: trying all of them again",
                history.resources,
            )
        case EndKind.REFUSED:
            return Stop(f"Slurm refuses the job: {end.message}")
        case EndKind.UNREACHABLE:
            return _after_unreachable(history)
        case EndKind.STILL_PENDING if limits.on_start_timeout == "stop":
            return Stop(f"{end.message}; the site says on_start_timeout: stop")
        case EndKind.STILL_PENDING:
            return Wait(f"{end.message}; waiting on")
        case EndKind.DETACHED:
            return Stop(f"{end.message}; the same command watches it again")
        case EndKind.NOT_STARTED:
            return _after_no_start(end, history)
        case EndKind.HOST_OOM:
            return _with_more_memory(end, history, limits)
        case EndKind.PREEMPTED:
            return Retry("a job of higher priority took the place; again, not counted", *_same(history))
    return _after_lost_work(end, history, limits)


def _after_lost_work(end: AttemptEnd, history: History, limits: AttemptLimits) -> Decision:
    """Decide about attempts that may just resume: paused, timed out, killed, lost, frozen."""
    needed_s = end.needed_walltime_s
    walltime_s = history.resources.walltime_s if history.resources is not None else None
    if needed_s is not None and walltime_s is not None and walltime_s < needed_s and not end.made_progress:
        return _with_longer_walltime(end, history, limits, f"needs more than {needed_s:.0f} s to save and do one step")
    num_stale = _trailing(end, history, lambda one: not one.made_progress)
    is_short_of_time = end.kind in (EndKind.TIMEOUT, EndKind.PAUSED) and walltime_s is not None
    if num_stale == MAX_STALE_ATTEMPTS - 1 and is_short_of_time:
        return _with_longer_walltime(end, history, limits, f"left no new checkpoint in {num_stale} attempts")
    if num_stale >= MAX_STALE_ATTEMPTS:
        return Stop(f"no progress: {num_stale} attempts in a row left no new checkpoint; the last one: {end.message}")
    source = end.checkpoint or "the start of the stage"
    if end.kind in (EndKind.NODE_FAILURE, EndKind.FROZEN) and end.node:
        resources, excluded = _same(history)
        return Retry(f"again from {source}, without node {end.node}", resources, excluded | {end.node})
    return Retry(f"again from {source}", *_same(history))


def _after_failure(end: AttemptEnd, history: History, limits: AttemptLimits) -> Decision:
    """Decide about a stage that states itself why it cannot continue."""
    if end.failure is FailureKind.HOST_OOM:
        return _with_more_memory(end, history, limits)
    if end.failure is not FailureKind.CUDA_OOM:
        return Stop(f"trying again would end the same way: {end.failure or 'ERROR'}")
    types = limits.bigger_gpu_types
    current = history.resources.gpu_type if history.resources is not None else None
    bigger = types[types.index(current) + 1 :] if current in types else types
    if history.resources is None or not bigger:
        return Stop("the GPU's memory is too small even for the smallest part of a batch, and the site names no bigger")
    resources = history.resources.model_copy(update={"gpu_type": bigger[0]})
    return Retry(f"the GPU's memory is too small: again on {bigger[0]}", resources, history.excluded_nodes)


def _after_no_start(end: AttemptEnd, history: History) -> Decision:
    """Decide about a job that ended before its worker reported: a broken environment, or a broken node."""
    if IMAGE_CHANGED in end.message:
        return _after_changed_image(end, history)
    if any(word in end.message for word in BROKEN_ENVIRONMENT):
        return Stop(f"the worker cannot start in this environment, on any node: {end.message}")
    count = _trailing(end, history, lambda one: one.kind is EndKind.NOT_STARTED and IMAGE_CHANGED not in one.message)
    if count >= MAX_NOT_STARTED:
        return Stop(f"{count} jobs in a row ended before their worker reported; the last one: {end.message}")
    resources, excluded = _same(history)
    without = f", without node {end.node}" if end.node else ""
    return Retry(f"once more{without}", resources, excluded | ({end.node} if end.node else set()))


def _after_changed_image(end: AttemptEnd, history: History) -> Decision:
    """Decide about a job whose image was replaced while it waited: no node's fault, and the new file is checked."""
    count = _trailing(end, history, lambda one: one.kind is EndKind.NOT_STARTED and IMAGE_CHANGED in one.message)
    if count >= MAX_STALE_ATTEMPTS:
        return Stop(
            f"the image was replaced while {count} jobs in a row waited: build under another name; {end.message}"
        )
    delay_s = count * IMAGE_DELAY_S
    return Retry(
        f"the image was replaced while the job waited: again in {delay_s:.0f} s, if the new one fits this kdgat",
        *_same(history),
        delay_s=delay_s,
    )


def _after_unreachable(history: History) -> Decision:
    """Ask a controller that does not answer again, ever less often."""
    count = 0
    for earlier in reversed(history.ends):
        if earlier.kind is not EndKind.UNREACHABLE:
            break
        count += 1
    if count + 1 >= MAX_UNREACHABLE:
        return Stop(f"the Slurm controller did not answer {count + 1} times; the same command goes on when it does")
    delay_s = min(FIRST_DELAY_S * 2.0**count, LONGEST_DELAY_S)
    return Retry(f"asking Slurm again in {delay_s:.0f} s", *_same(history), delay_s=delay_s)


def _with_more_memory(end: AttemptEnd, history: History, limits: AttemptLimits) -> Decision:
    resources = history.resources
    if resources is None:
        return Stop("this machine has too little memory: use a smaller training.batch_size, or a site with more")
    wanted = int(resources.memory_mib * MEMORY_GROWTH)
    granted = min(wanted, limits.max_memory_mib or wanted)
    if granted <= resources.memory_mib:
        return Stop(
            f"{format_memory(resources.memory_mib)} are not enough and the site allows no more: use a smaller "
            "training.batch_size, or raise limits.memory in the site file"
        )
    more = resources.model_copy(update={"memory_mib": granted})
    change = f"{format_memory(resources.memory_mib)} were not enough: again with {format_memory(granted)}"
    return Retry(change, more, history.excluded_nodes)


def _with_longer_walltime(end: AttemptEnd, history: History, limits: AttemptLimits, why: str) -> Decision:
    resources = history.resources
    assert resources is not None
    needed_s = end.needed_walltime_s or 0.0
    wanted = int(max(resources.walltime_s * WALLTIME_GROWTH, 2 * needed_s))
    granted = min(wanted, limits.max_walltime_s or wanted)
    current = format_walltime(resources.walltime_s)
    if granted <= resources.walltime_s or granted < needed_s:
        return Stop(
            f"a walltime of {current} is too short and the site allows {format_walltime(granted)} at most: "
            f"the stage {why} ({end.message})"
        )
    longer = resources.model_copy(update={"walltime_s": granted})
    change = f"a walltime of {current} is too short, the stage {why}: again with {format_walltime(granted)}"
    return Retry(change, longer, history.excluded_nodes)


def _same(history: History) -> tuple[Resources | None, frozenset[str]]:
    return history.resources, history.excluded_nodes


def _trailing(end: AttemptEnd, history: History, counts: Callable[[AttemptEnd], bool]) -> int:
    """Count the attempts in a row, this one included, for which `counts` holds; uncounted kinds do not interrupt.

    A preempted attempt that wrote a checkpoint is progress all the same.
    """
    count = 0
    ends: Sequence[AttemptEnd] = (*history.ends, end)
    for one in reversed(ends):
        if one.kind in UNCOUNTED and not one.made_progress:
            continue
        if not counts(one):
            break
        count += 1
    return count
