"""Addresses that are refused before a server is asked; with a server: test_notification.py."""

import pytest

from flows.deployment.notification import check_address
from kdgat.base import UserError


@pytest.mark.parametrize(
    "address",
    [
        "hooks.slack.com/services/T01/B02/KEY",
        "hooks.slack.com/KEY",
        "services/T01KEY",  # names of blocks have small letters
        "hooks.slack.com/services/KEY?next=https://example.org",
        "ops@KEY",
        "KEY",
        "carrier-pigeon://KEY",
    ],
)
def test_an_address_that_is_refused_is_not_printed(address: str) -> None:
    with pytest.raises(UserError, match="KDGAT_NOTIFY") as refused:
        check_address(address)
    assert "KEY" not in str(refused.value)
    assert refused.value.__context__ is None


@pytest.mark.parametrize("address", ["", "off", "slack-webhook/ops", "https://hooks.slack.com/services/T/B/KEY"])
def test_an_address_and_a_name_of_a_block_are_taken(address: str) -> None:
    check_address(address)
