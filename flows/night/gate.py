"""What every night does alike: its training, what the new model is held to, the way into service, and old runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from prefect import Flow, get_run_logger
from prefect.client.schemas.objects import State

from flows.shown_attempts import OUTER_LOG
from kdgat.can.nightly.directory import NightlyDirectory, NightlyRecord
from kdgat.cluster import ResourceRequest, Site
from kdgat.registry import ModelEntry, Promotion, Registry
from kdgat.run import RunConfig, RunError

BY: Final = "nightly"  # in the history of the registry


def train(
    flow: Flow[..., State[Any]], config: RunConfig, out: Path, site: Site, command_line: ResourceRequest
) -> State[Any]:
    """Run the flow of a family within a night, whose log tells of its stages, too."""
    outer = OUTER_LOG.set(get_run_logger())
    try:
        return flow(config=config, out=out, site=site, command_line=command_line, return_state=True)
    finally:
        OUTER_LOG.reset(outer)


def compared_with(
    registry: Registry, family: str, dataset: str, content: str, record: NightlyRecord
) -> ModelEntry | None:
    """Return the model in service, or the one before where this night had come as far as putting its own there."""
    current = registry.in_service(family, dataset)
    if current is not None and (current.content, current.id) == (content, record.model):
        return None if record.compared_with is None else registry.entry(record.compared_with)
    return current


def put_into_service(
    registry: Registry,
    entry: ModelEntry,
    decision: Promotion,
    record: NightlyRecord,
    anchors: Callable[[], tuple[str, ...]] | None = None,
) -> Promotion:
    """Put a model into service that was accepted, unless it is there, was taken out again, or another one is held.

    Args:
        decision: on the scores alone.
        record: of the run, with the model in service that it was compared with.
        anchors: what those are that later models are held to.

    Returns:
        What was decided in the end.
    """
    index = registry.read()
    current, held = index.in_service(entry.family, entry.dataset), index.held(entry.family, entry.dataset)
    if current == entry.id:
        if record.compared_with == entry.id:
            return Promotion(False, ("it is the model in service: nothing that training reads has changed",))
        return decision
    if held is not None:
        reason = f"{current} is {held.describe_hold()}; `kdgat model release` lets nights replace it"
        return Promotion(False, (*decision.reasons, reason))
    if not decision.accepted:
        return decision
    earlier = index.promoted_since(entry.id, record.created)
    if earlier is not None:  # this night died after it had put its model there, and somebody has thought otherwise
        reason = f"it went into service at {earlier.when} and was taken out again since: {current} stays"
        return Promotion(False, (*decision.reasons, reason))
    registry.promote(
        entry.id,
        reason=decision.describe(),
        by=BY,
        expected=record.compared_with,
        anchors=None if anchors is None else anchors(),
    )
    return decision


def remove_old_runs(directory: NightlyDirectory, keep: int) -> None:
    """Remove the oldest runs whose models are registered; one that cannot be stays: what the night decided holds."""
    logger = get_run_logger()
    for old in directory.old_runs(keep):
        try:
            directory.remove_run(old)
        except (RunError, OSError) as error:
            logger.warning("%s stays until a later night: %s", old, error)
        else:
            logger.info("removed %s, whose model is in the registry", old)
