"""Ends of attempts, as the tests of this folder need them."""

from typing import Any

from kdgat.cluster import EndKind, Site, format_walltime
from kdgat.cluster.ending import AttemptEnd
from kdgat.cluster.site import Limits
from kdgat.stage import Failed, FailureKind, Paused

CHECKPOINT = "checkpoints/checkpoint-00000040.pt"


def ended(kind: EndKind, *, progress: bool = False, **values: Any) -> AttemptEnd:
    """Make an end of a job on n1; one with progress has a checkpoint."""
    common = {"message": "what was seen", "job_id": "7", "node": "n1", "checkpoint": CHECKPOINT if progress else ""}
    return AttemptEnd(kind, **{**common, "made_progress": progress, **values})


def failed(kind: FailureKind, **values: Any) -> AttemptEnd:
    """Make the end of a stage that says itself why it cannot go on."""
    outcome = Failed(kind=kind, evidence="what the stage wrote")
    return ended(EndKind.FAILED, outcome=outcome, **values)


def refused_to_train(needed_s: float, **values: Any) -> AttemptEnd:
    """Make the end of a stage that found its job too short to get anywhere."""
    outcome = Paused(checkpoint="", reason="the job is too short", needed_s=needed_s)
    return ended(EndKind.PAUSED, message=outcome.reason, outcome=outcome, **values)


def limited(walltime_s: int | None = None, memory_mib: int | None = None, **keys: Any) -> Site:
    """Make a site that grants no more."""
    walltime = None if walltime_s is None else format_walltime(walltime_s)
    return Site(name="limited", limits=Limits(walltime=walltime, memory=memory_mib), **keys)
