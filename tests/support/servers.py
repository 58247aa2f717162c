"""What tests know of the services that they share."""

from pathlib import Path
from typing import NamedTuple


class PrefectServer(NamedTuple):
    """A Prefect API that answers, and its database."""

    url: str
    database: Path
