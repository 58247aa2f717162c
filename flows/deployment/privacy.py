"""What other people on the machine must not see, and whether there are any."""

import os
from typing import Final

import psutil

from flows.deployment.installation import DATABASE_VARIABLE, InstallationError

FIRST_PERSON: Final = 1000  # user ids below are those of services
NO_PEOPLE: Final = range(60_001, 65_536)  # of systemd and nobody


def without_passwords(database: str) -> str:
    """Return the address of a database as it may be shown.

    Raises:
        InstallationError: if it is no address; it may hold a password, and is not repeated.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(database)
    except (ArgumentError, ValueError) as error:
        raise InstallationError(
            f"{DATABASE_VARIABLE} is no address of a database: write postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE"
        ) from error
    secret = [key for key in url.query if "pass" in key.lower()]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


def others_are_here() -> bool:
    """Tell whether people other than this user have processes on this machine."""
    uids = {process.info["uids"].effective for process in psutil.process_iter(["uids"]) if process.info["uids"]}
    return any(uid >= FIRST_PERSON and uid not in NO_PEOPLE for uid in uids - {os.getuid()})
