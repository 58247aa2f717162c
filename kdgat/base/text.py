"""Amounts as people read them."""

from typing import Final

MIB: Final = 1 << 20


def describe_bytes(amount: float) -> str:
    """Write bytes as people read them.

    >>> describe_bytes(850 * MIB), describe_bytes(1434 * MIB)
    ('850 MiB', '1.4 GiB')
    """
    return f"{amount / MIB:.0f} MiB" if amount < 1024 * MIB else f"{amount / (1024 * MIB):.1f} GiB"


def describe_time(seconds: float) -> str:
    """Write a time as people plan with it.

    >>> describe_time(40), describe_time(720), describe_time(19_080)
    ('40 s', '12 min', '5.3 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
