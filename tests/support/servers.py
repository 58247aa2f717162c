"""What tests know of the services that they share."""

from typing import NamedTuple


class PrefectServer(NamedTuple):
    """A Prefect API that answers, and lets in who has the environment of the tests."""

    url: str
