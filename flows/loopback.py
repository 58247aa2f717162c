"""Ports of the loopback, which belongs to everybody on the machine: who listens there, and whether it is our server."""

import base64
import contextlib
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = "127.0.0.1"
ANY: Final = "0.0.0.0"
SOCKETS: Final = Path("/proc/net/tcp")  # of everybody, also where processes of others are hidden
LISTENING: Final = "0A"
ANSWER_S: Final = 5.0


@contextlib.contextmanager
def reserved_port() -> Iterator[socket.socket]:
    """Yield a socket, bound to a port that nobody else gets for as long as the context lasts.

    Whoever inherits the socket listens there, and nobody does once it is gone: clients are refused, and do not wait.
    """
    with socket.socket() as reservation, socket.socket() as serving:
        for both in (reservation, serving):
            both.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # shared with sockets of this user alone
        reservation.bind((LOOPBACK, 0))
        serving.bind(reservation.getsockname())
        yield serving


def is_free(port: int) -> bool:
    """Tell whether nobody listens on a port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def is_ours(port: int) -> bool:
    """Tell whether somebody listens on a port of the loopback, and nobody but this user does."""
    addresses = {f"{int.from_bytes(socket.inet_aton(ip), sys.byteorder):08X}:{port:04X}" for ip in (LOOPBACK, ANY)}
    rows = [line.split() for line in SOCKETS.read_text().splitlines()[1:]]
    # Number, own address, the other's address, state, ..., owner.
    return {int(row[7]) for row in rows if row[1] in addresses and row[3] == LISTENING} == {os.getuid()}


def answers(url: str, auth_string: str = "") -> bool:
    """Tell whether our Prefect API answers at an address of the loopback, and lets in who knows the string.

    Whose server it is, the kernel says: the string is sent to nobody else.
    """
    if not is_ours(urlsplit(url).port or 80):
        return False
    key = base64.b64encode(auth_string.encode()).decode()
    request = urllib.request.Request(f"{url}/admin/version", headers={"Authorization": f"Basic {key}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    try:
        with opener.open(request, timeout=ANSWER_S) as answer:
            return bool(answer.status == 200)
    except OSError:  # not listening yet, too busy, or of another string
        return False
