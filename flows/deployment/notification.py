"""Who is told how nights went: automations of the server, and the block through which they send; docs/nightly.md."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import httpx
from prefect.blocks.notifications import CustomWebhookNotificationBlock, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import BlockDocument
from prefect.events.actions import SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectNotFound

from flows.deployment.installation import NOTIFY_VARIABLE
from flows.lost_runs import LOST
from flows.night.events import NightEvent
from kdgat.base import UserError
from kdgat.family.night import FLOW_NAME

BLOCK: Final = "kdgat-nights"
OFF: Final = "off"
SEND_TIMEOUT_S: Final = 30.0
_NAME: Final = re.compile(r"[a-z0-9-]+/[a-z0-9-]+")  # TYPE/NAME of a block, as the server takes them
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)
_DATASET: Final = (  # or the file of an experiment
    "{{ flow_run.parameters.config.source or flow_run.parameters.config.data.dataset }}"
)
_RUN: Final = "\n{{ flow_run|ui_url }}"
# name of the automation -> events, subject and text
AUTOMATIONS: Final[Mapping[str, tuple[set[str], str, str]]] = {
    "tell that a night failed": (
        {f"prefect.flow-run.{state}" for state in ("Failed", "Crashed", "TimedOut", LOST)},
        f"night of {_DATASET} failed",
        f"{{{{ flow_run.state.message }}}}{_RUN}",
    ),
    "tell that a night was cancelled": (  # while another run of its dataset goes on, for instance
        {"prefect.flow-run.Cancelled"},
        f"night of {_DATASET} was cancelled",
        f"{{{{ flow_run.state.message }}}}{_RUN}",
    ),
    "tell that a night refused files": (
        {NightEvent.REFUSED.value},
        f"night of {_DATASET} refused files",
        f"{{{{ event.payload.text }}}}{_RUN}",
    ),
    "tell that nights promote nothing": (
        {NightEvent.STANDSTILL.value},
        f"nights of {_DATASET} promote nothing",
        f"{{{{ event.payload.text }}}}{_RUN}",
    ),
    "tell that a night promoted a model": (
        {NightEvent.PROMOTED.value},
        f"night of {_DATASET} put a new model into service",
        f"{{{{ event.payload.text }}}}{_RUN}",
    ),
}
NO_NIGHT: Final = "tell that no night completes"
ENDS: Final = frozenset(
    f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Crashed", "TimedOut", "Cancelled", "Late", LOST)
)


def ensure_notifications(client: SyncPrefectClient, address: str, patience: timedelta = timedelta(hours=48)) -> bool:
    """Make, update or remove the automations that tell people of nights, and return whether there are any.

    One that somebody has paused stays paused.

    Args:
        client: of the server.
        address: an `http(s)` address that takes JSON `{"text": ...}`, any other address that Apprise knows, or
            `TYPE/NAME` of a notification block of the server; empty or `off` for none.
        patience: how long after a night that completed, or the first one that did not, the next one may.

    Raises:
        UserError: if there is no such block, or nobody knows how to send to such an address.
    """
    block = None if address in ("", OFF) else _block(client, address)
    triggers = {
        name: (_trigger(expect=events, posture=Posture.Reactive, threshold=1, within=timedelta(0)), subject, body)
        for name, (events, subject, body) in AUTOMATIONS.items()
    }
    silence = _trigger(
        after=ENDS,
        expect={"prefect.flow-run.Completed"},
        for_each={"related:deployment:prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=patience,
    )
    hours = f"{patience.total_seconds() / 3600:g} h"
    text = f"No night has completed for {hours}. `make deployed` says whether the worker runs; the last one:{_RUN}"
    triggers[NO_NIGHT] = silence, f"no night of {_DATASET} completes", text
    for name, (trigger, subject, body) in triggers.items():
        found = client.read_automations_by_name(name)
        if block is None:
            for old in found:
                client.delete_automation(old.id)
            continue
        automation = AutomationCore(
            name=name,
            description=f"Set by {NOTIFY_VARIABLE} of `make deploy`; pause it here to be told no more.",
            enabled=found[0].enabled if found else True,
            trigger=trigger,
            actions=[SendNotification(block_document_id=block, subject=subject, body=body)],
        )
        if found:
            client.update_automation(found[0].id, automation)
        else:
            client.create_automation(automation)
    return block is not None


def _trigger(**parts: Any) -> EventTrigger:
    return EventTrigger(
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        match_related=ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": FLOW_NAME}),
        **parts,
    )


def send(address: str, subject: str, text: str) -> bool:
    """Send a message without a server; return whether it was, which a block of the server's cannot."""
    from apprise import Apprise

    if address.startswith(("http://", "https://")):
        try:
            return httpx.post(address, json={"text": f"{subject}\n{text}"}, timeout=SEND_TIMEOUT_S).is_success
        except httpx.HTTPError:
            return False
    found = Apprise()
    return "://" in address and found.add(address) and bool(found.notify(body=text, title=subject))


def check_address(address: str) -> None:
    """Refuse an address that nobody knows how to send to; UserError, without the address: it may be secret."""
    from apprise import Apprise

    scheme, separator, _ = address.partition("://")
    if not _SCHEME.fullmatch(scheme):
        separator = ""  # an address within another text
    if not separator and address not in ("", OFF) and not _NAME.fullmatch(address):
        raise UserError(
            f"{NOTIFY_VARIABLE} is neither an address with :// nor TYPE/NAME of a block, and is not shown here, as it "
            "may hold a key: begin it with https://, or give a block, as slack-webhook/ops"
        )
    if not separator or address.startswith(("http://", "https://")) or Apprise().add(address):
        return
    raise UserError(
        f"{NOTIFY_VARIABLE}={scheme}://...: nobody knows how to send there: give an https address "
        "that takes JSON, an address of Apprise as mailtos://USER:PASSWORD@HOST?to=YOU, or TYPE/NAME of a block"
    )


def _block(client: SyncPrefectClient, address: str) -> UUID:
    """Return the block to send through, made from an address where it is one."""
    check_address(address)
    if "://" not in address:
        return _named_block(client, address).id
    block: Any
    if address.startswith(("http://", "https://")):
        # The address may hold the key to a channel: as a secret, the UI does not show it.
        block = CustomWebhookNotificationBlock(
            name=BLOCK,
            url="{{ address }}",
            json_data={"text": "{{ subject }}\n{{ body }}"},
            secrets={"address": address},
        )
    else:
        block = SlackWebhook(url=address)  # hands to Apprise whatever is no address of Slack's
    return UUID(str(block.save(BLOCK, overwrite=True)))


def _named_block(client: SyncPrefectClient, name: str) -> BlockDocument:
    slug, _, block = name.partition("/")
    try:
        return client.read_block_document_by_name(block, slug)
    except ObjectNotFound:
        pass
    raise UserError(
        f"{NOTIFY_VARIABLE}={name}: the server has no such block: make one in the UI (Blocks, +), and give TYPE/NAME, "
        "as slack-webhook/ops, or an address"
    )
