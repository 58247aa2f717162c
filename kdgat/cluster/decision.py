"""What to do after an attempt ended: a pure function, so that every answer can be read in a table of tests."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kdgat.cluster.container import IMAGE_CHANGED
from kdgat.cluster.ending import NOT_NOW, UNCOUNTED, AttemptEnd, EndKind
from kdgat.cluster.resources import Resources, format_memory, format_walltime
from kdgat.cluster.site import Site
from kdgat.stage import FailureKind
from kdgat.stage.gpus import FOR_CUDA_12, OF_THE_CARD

# Bounds on what happens without a new checkpoint, each apart from the others.
MAX_STALE_ATTEMPTS: Final = 3  # faults of the stage
MAX_FRUITLESS_ATTEMPTS: Final = 12  # likewise, though each got more memory, a longer walltime or a bigger GPU
MAX_LOST: Final = 10  # attempts ended from outside: with the delays below a quarter of an hour
MAX_ENVIRONMENT: Final = 10  # ended by node, filesystem or GPU: 43 minutes
MAX_NOT_STARTED: Final = 4  # jobs in a row that end before their worker reports
MAX_IMAGE_CHANGES: Final = 3  # jobs in a row whose image was replaced
FIRST_DELAY_S: Final = 5.0
IMAGE_DELAY_S: Final = 15.0  # for a node that a network filesystem still shows the file that was there before
LONGEST_DELAY_S: Final = 300.0
LONGEST_OUTAGE_DELAY_S: Final = 1800.0  # for a filesystem that is being mended
MEMORY_GROWTH: Final = 1.5
WALLTIME_GROWTH: Final = 2.0
# What the job's error file says when another try on another node would say the same.
BROKEN_INSTALLATION: Final = "ModuleNotFoundError"
NODE_SIGNALS: Final = (signal.SIGBUS, signal.SIGILL)  # its filesystem does not answer; its processor is an older one
EVIDENCE_LENGTH: Final = 160
# What the stage says when all nodes are alike in it.
OF_NO_NODE: Final = ("is in use by", "Disk quota exceeded")


@dataclass(frozen=True)
class History:
    """What came before the attempt that just ended, as far as it matters (`AttemptLedger.history`)."""

    resources: Resources | None = None  # of that attempt; None: a process on this machine
    ends: tuple[AttemptEnd, ...] = ()  # earlier ones, oldest first
    excluded_nodes: frozenset[str] = frozenset()
    unescalated: Resources | None = None  # what was asked for before it was last raised; None: it was not
    refused: Resources | None = None  # what was asked for when Slurm granted no job so much


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


def decide(end: AttemptEnd, history: History, site: Site) -> Decision:
    """Choose what follows the end of an attempt; the sentence is for whoever reads it in the Prefect UI.

    Without progress every sequence of ends comes to a `Stop`, except for preemptions, which may go on for ever.

    >>> lost = AttemptEnd(EndKind.NODE_FAILURE, "node o0123 failed", node="o0123", checkpoint="checkpoints/7.pt")
    >>> decide(lost, History(), Site(name="local")).reason
    'again from checkpoints/7.pt, without node o0123'
    """
    decision = _choose(end, history, site)
    if isinstance(decision, Retry) and end.is_fault:
        num_faults = _since_progress(end, history, lambda one: one.is_fault)
        if num_faults >= MAX_FRUITLESS_ATTEMPTS:
            return Stop(_no_progress(num_faults, end))
    return decision


def _choose(end: AttemptEnd, history: History, site: Site) -> Decision:
    if end.is_of_environment:
        return _after_environment(end, history)
    if end.is_loss:
        return _after_loss(end, history)
    match end.kind:
        case EndKind.FINISHED:
            return Stop("finished")
        case EndKind.FAILED:
            return _after_failure(end, history, site)
        case EndKind.CANCELLED:
            return Stop(
                f"somebody cancelled job {end.job_id}, so it is not started again; the same command goes on from "
                f"{_source(end)}"
            )
        case EndKind.REFUSED | EndKind.CANNOT_START:
            return _after_refusal(end, history)
        case EndKind.UNREACHABLE | EndKind.DEFERRED:
            return _after_not_now(end, history, site)
        case EndKind.STILL_PENDING if site.on_start_timeout == "stop":
            return Stop(f"{end.message}; the site says on_start_timeout: stop")
        case EndKind.STILL_PENDING:
            return Wait(f"{end.message}; waiting on")
        case EndKind.DETACHED:
            return Stop(f"{end.message}; the same command watches it again")
        case EndKind.NOT_STARTED:
            return _after_no_start(end, history)
        case EndKind.HOST_OOM:
            return _with_more_memory(history, site)
        case EndKind.PREEMPTED:
            count = _since_progress(end, history, lambda one: one.kind is EndKind.PREEMPTED)
            delay_s = _delay_s(count - 1)
            text = f"a job of higher priority took the place; again{_in(delay_s)}, not counted"
            return Retry(text, *_same(history), delay_s=delay_s)
    return _after_lost_time(end, history, site)


def _after_lost_time(end: AttemptEnd, history: History, site: Site) -> Decision:
    """Decide about attempts that ended with their time, or that crashed."""
    needed_s = end.needed_walltime_s
    walltime_s = history.resources.walltime_s if history.resources is not None else None
    if needed_s is not None and walltime_s is not None and walltime_s < needed_s and not end.made_progress:
        return _with_longer_walltime(end, history, site, f"needs more than {needed_s:.0f} s to save and do one step")
    num_stale = _since_progress(end, history, lambda one: one.is_fault)
    is_short_of_time = end.kind in (EndKind.TIMEOUT, EndKind.PAUSED) and walltime_s is not None
    if num_stale == MAX_STALE_ATTEMPTS - 1 and is_short_of_time:
        return _with_longer_walltime(end, history, site, f"left no new checkpoint in {num_stale} attempts")
    if num_stale >= MAX_STALE_ATTEMPTS:
        return Stop(_no_progress(num_stale, end))
    return Retry(f"again from {_source(end)}", *_same(history))


def _after_loss(end: AttemptEnd, history: History) -> Decision:
    """Decide about attempts that were ended from outside: the stage did nothing wrong."""
    count = _since_progress(end, history, lambda one: one.is_loss)
    if count >= MAX_LOST:
        return Stop(
            f"{count} attempts since the last checkpoint were ended from outside, which is no chance any more; "
            f"the last one: {_in_short(end)}"
        )
    is_of_node = end.kind in (EndKind.NODE_FAILURE, EndKind.FROZEN) or end.signal in NODE_SIGNALS
    return _again(end, history, _delay_s(count - 1), is_of_node=is_of_node)


def _after_environment(end: AttemptEnd, history: History) -> Decision:
    """Decide about a stage that found its node, filesystem or GPU broken: elsewhere, and later."""
    gpu_type = history.resources.gpu_type if history.resources is not None else None
    is_of_the_card = any(words in end.message for words in OF_THE_CARD)
    if gpu_type is not None and is_of_the_card and not any(one.made_progress for one in history.ends):
        return Stop(f"every {gpu_type} of the site is alike: {FOR_CUDA_12}, or another gpu_type; {_in_short(end)}")
    count = _since_progress(end, history, lambda one: one.is_of_environment)
    if count >= MAX_ENVIRONMENT:
        return Stop(
            f"{count} attempts since the last checkpoint found something broken around them: fix it, and the same "
            f"command goes on; the last one: {_in_short(end)}"
        )
    delay_s = _delay_s(max(count, 1), LONGEST_OUTAGE_DELAY_S)
    return _again(end, history, delay_s, is_of_node=not any(words in end.message for words in OF_NO_NODE))


def _again(end: AttemptEnd, history: History, delay_s: float, *, is_of_node: bool) -> Retry:
    """Start it again, and leave out the node where that was at fault and is known."""
    resources, excluded = _same(history)
    left_out = {end.node} if is_of_node and end.node else set()
    without = f", without node {end.node}" if left_out else ""
    return Retry(f"again from {_source(end)}{_in(delay_s)}{without}", resources, excluded | left_out, delay_s)


def _after_failure(end: AttemptEnd, history: History, site: Site) -> Decision:
    """Decide about a stage that states itself why it cannot continue."""
    if end.failure is FailureKind.HOST_OOM:
        return _with_more_memory(history, site)
    if end.failure is not FailureKind.CUDA_OOM:
        return Stop(f"trying again would end the same way: {end.failure or 'ERROR'}")
    types = site.bigger_gpu_types
    current = history.resources.gpu_type if history.resources is not None else None
    bigger = types[types.index(current) + 1 :] if current in types else types
    if history.refused is not None:
        bigger = tuple(kind for kind in bigger if kind != history.refused.gpu_type)
    if history.resources is None or not bigger:
        return Stop("the GPU's memory is too small even for the smallest part of a batch, and the site names no bigger")
    resources = history.resources.model_copy(update={"gpu_type": bigger[0]})
    return Retry(f"the GPU's memory is too small: again on {bigger[0]}", resources, history.excluded_nodes)


def _after_refusal(end: AttemptEnd, history: History) -> Decision:
    """Decide about a job that Slurm never starts as it is: with what we changed undone, or not at all."""
    if history.excluded_nodes:
        return Retry(
            f"no node is left without {', '.join(sorted(history.excluded_nodes))}: trying all of them again",
            history.resources,
        )
    if history.unescalated is not None:
        return Retry(
            f"Slurm grants no job so much: again with {history.unescalated.describe()}, as before; {_in_short(end)}",
            history.unescalated,
        )
    return Stop(f"Slurm refuses the job: {end.message}")


def _after_no_start(end: AttemptEnd, history: History) -> Decision:
    """Decide about a job that ended before its worker reported: a broken installation, or a broken node."""
    if IMAGE_CHANGED in end.message:
        return _after_changed_image(end, history)
    if BROKEN_INSTALLATION in end.message:
        return Stop(f"the worker cannot start in this environment, on any node: {end.message}")
    count = _in_a_row(end, history, lambda one: one.kind is EndKind.NOT_STARTED and IMAGE_CHANGED not in one.message)
    if count >= MAX_NOT_STARTED:
        return Stop(f"{count} jobs in a row ended before their worker reported; the last one: {end.message}")
    return _again(end, history, _delay_s(count), is_of_node=True)


def _after_changed_image(end: AttemptEnd, history: History) -> Decision:
    """Decide about a job whose image was replaced while it waited: no node's fault, and the new file is checked."""
    count = _in_a_row(end, history, lambda one: one.kind is EndKind.NOT_STARTED and IMAGE_CHANGED in one.message)
    if count >= MAX_IMAGE_CHANGES:
        return Stop(
            f"the image was replaced while {count} jobs in a row waited: build under another name; {end.message}"
        )
    delay_s = count * IMAGE_DELAY_S
    return Retry(
        f"the image was replaced while the job waited: again{_in(delay_s)}, if the new one fits this kdgat",
        *_same(history),
        delay_s=delay_s,
    )


def _after_not_now(end: AttemptEnd, history: History, site: Site) -> Decision:
    """Ask Slurm again, ever less often, for as long as the site says."""
    count = 0
    for earlier in reversed(history.ends):
        if earlier.kind not in NOT_NOW:
            break
        count += 1
    if sum(_delay_s(number) for number in range(1, count + 1)) >= site.submit_timeout_s:
        return Stop(
            f"Slurm was asked {count + 1} times in {format_walltime(int(site.submit_timeout_s))}, the site's "
            f"submit_timeout_s, and takes no job now; the same command goes on when it does: {_in_short(end)}"
        )
    delay_s = _delay_s(count + 1)
    what = "does not answer" if end.kind is EndKind.UNREACHABLE else "takes no job now"
    return Retry(f"Slurm {what}: asking it again{_in(delay_s)}", *_same(history), delay_s=delay_s)


def _with_more_memory(history: History, site: Site) -> Decision:
    resources = history.resources
    if resources is None:
        return Stop("this machine has too little memory: use a smaller training.batch_size, or a site with more")
    wanted = int(resources.memory_mib * MEMORY_GROWTH)
    granted = min(wanted, site.limits.memory_mib or wanted)
    refused_mib = history.refused.memory_mib if history.refused is not None else granted + 1
    if granted <= resources.memory_mib or resources.memory_mib < refused_mib <= granted:
        return Stop(
            f"{format_memory(resources.memory_mib)} are not enough and the site allows no more: use a smaller "
            "training.batch_size, or raise limits.memory in the site file"
        )
    more = resources.model_copy(update={"memory_mib": granted})
    change = f"{format_memory(resources.memory_mib)} were not enough: again with {format_memory(granted)}"
    return Retry(change, more, history.excluded_nodes)


def _with_longer_walltime(end: AttemptEnd, history: History, site: Site, why: str) -> Decision:
    resources = history.resources
    assert resources is not None
    needed_s = end.needed_walltime_s or 0.0
    wanted = int(max(resources.walltime_s * WALLTIME_GROWTH, 2 * needed_s))
    granted = min(wanted, site.limits.walltime_s or wanted)
    if history.refused is not None and resources.walltime_s < history.refused.walltime_s <= granted:
        granted = resources.walltime_s
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


def _source(end: AttemptEnd) -> str:
    return end.checkpoint or "the start of the stage"


def _in(delay_s: float) -> str:
    return f" in {delay_s:.0f} s" if delay_s else ""


def _in_short(end: AttemptEnd) -> str:
    """Return the last line of what happened: of a traceback the error."""
    return (end.message.strip().splitlines() or [""])[-1][:EVIDENCE_LENGTH]


def _no_progress(count: int, end: AttemptEnd) -> str:
    return f"no progress: {count} attempts in a row left no new checkpoint; the last one: {end.message}"


def _delay_s(count: int, longest_s: float = LONGEST_DELAY_S) -> float:
    """Return how long to wait after the `count`-th time: 5, 10, 20, ... seconds; none after the zeroth."""
    return min(FIRST_DELAY_S * 2.0 ** min(count - 1, 20), longest_s) if count > 0 else 0.0


def _since_progress(end: AttemptEnd, history: History, counts: Callable[[AttemptEnd], bool]) -> int:
    """Count the attempts after the last new checkpoint, this one included, for which `counts` holds."""
    count = 0
    for one in reversed((*history.ends, end)):
        if one.made_progress:
            break
        count += counts(one)
    return count


def _in_a_row(end: AttemptEnd, history: History, counts: Callable[[AttemptEnd], bool]) -> int:
    """Count the attempts in a row, this one included, for which `counts` holds; uncounted kinds do not interrupt.

    A preempted attempt that wrote a checkpoint is progress all the same.
    """
    count = 0
    for one in reversed((*history.ends, end)):
        if one.kind in UNCOUNTED and not one.made_progress:
            continue
        if not counts(one):
            break
        count += 1
    return count
