"""Events of nights beside the states of their flow runs: what automations tell people of, see docs/nightly.md."""

from enum import StrEnum
from typing import Final

from prefect.context import FlowRunContext
from prefect.events import emit_event

PREFIX: Final = "kdgat.night"


class NightEvent(StrEnum):
    """What a night did that somebody may want to hear of; that one failed, its state says."""

    REFUSED = f"{PREFIX}.refused"  # it left files out of training, which came since the last night
    PROMOTED = f"{PREFIX}.promoted"  # it put a model into service
    STANDSTILL = f"{PREFIX}.standstill"  # like the nights before it it promoted nothing, or no night can any more


def tell(event: NightEvent, dataset: str, text: str) -> None:
    """Emit an event of the present flow run; the reason is `event.payload.text` in an automation's template."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        # The run as its resource: an automation finds flow and deployment among what is related to it.
        resource = {"prefect.resource.id": f"prefect.flow-run.{context.flow_run.id}", "prefect.resource.name": dataset}
        emit_event(event, resource=resource, payload={"dataset": dataset, "text": text})
