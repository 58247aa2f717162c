"""What other people on the machine must not see."""

from flows.deployment.installation import DATABASE_VARIABLE
from kdgat.base.errors import UserError


def without_passwords(database: str) -> str:
    """Return the address of a database as it may be shown.

    Raises:
        UserError: if it is no address; it may hold a password, and is not repeated.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(database)
    except (ArgumentError, ValueError) as error:
        raise UserError(
            f"{DATABASE_VARIABLE} is no address of a database: write postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE"
        ) from error
    secret = [key for key in url.query if "pass" in key.lower()]
    return url.difference_update_query(secret).render_as_string(hide_password=True)
