"""Ports of the loopback, which belongs to everybody on the machine: who listens there, and whether it is our server."""

import base64
import contextlib
import ipaddress
import os
import socket
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_6: Final = "::1"
SOCKETS: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # of all users, also where their processes are hidden
LISTENING: Final = "0A"
ANSWER_S: Final = 5.0
PATIENT_ANSWER_S: Final = 30.0  # where a person asks once: a server on a busy machine is slow, not gone


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


def is_ours(port: int, address: str = LOOPBACK) -> bool:
    """Tell whether somebody listens on a port of the loopback, and nobody but this user does."""
    return _owners(port, address) == {os.getuid()}


def is_here(host: str | None) -> bool:
    """Tell whether a host of an address is this machine's loopback, in any of the ways to write it."""
    return bool(_addresses(host))


def may_be_told(url: str) -> bool:
    """Tell whether a secret may be sent to an address: on the loopback, where processes of this user alone listen.

    Which of its addresses `localhost` leads to is not known before: a stranger may listen on neither.
    """
    address = urlsplit(url)
    addresses = _addresses(address.hostname)
    port = address.port or (443 if address.scheme == "https" else 80)
    return not addresses or {user for one in addresses for user in _owners(port, one)} == {os.getuid()}


def _owners(port: int, address: str) -> set[int]:
    """Return the users that listen on a port at an address of the loopback, or at all addresses of its kind."""
    own = ipaddress.ip_address(address)
    wanted = {f"{_words(one)}:{port:04X}" for one in (own.packed, bytes(len(own.packed)))}
    rows = [line.split() for path in SOCKETS if path.is_file() for line in path.read_text().splitlines()[1:]]
    # Number, own address, the other's address, state, ..., owner.
    return {int(row[7]) for row in rows if row[1] in wanted and row[3] == LISTENING}


def _words(packed: bytes) -> str:
    """Write an address as the kernel lists it: words of 32 bits in the order of this machine."""
    return "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))


def _addresses(host: str | None) -> tuple[str, ...]:
    """Return the addresses of the loopback that a host may lead to; none if it is another machine."""
    name = (host or "").rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return LOOPBACK, LOOPBACK_6
    try:
        found = ipaddress.ip_address(name if ":" in name else socket.inet_aton(name))  # also 127.1
    except (OSError, ValueError):
        return ()
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_unspecified:  # connects to the loopback
        return (LOOPBACK,) if found.version == 4 else (LOOPBACK_6,)
    return (str(found),) if found.is_loopback else ()


def answers(url: str, auth_string: str = "", timeout_s: float = ANSWER_S) -> bool:
    """Tell whether our Prefect API answers at an address of the loopback, and lets in who knows the string.

    Whose server it is, the kernel says: the string is sent to nobody else.
    """
    if not is_ours(urlsplit(url).port or 80):
        return False
    key = base64.b64encode(auth_string.encode()).decode()
    request = urllib.request.Request(f"{url}/admin/version", headers={"Authorization": f"Basic {key}"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except OSError:  # not listening yet, too busy, or of another string
        return False
