"""Nodes of the NFS machine, in which these tests run (`tests/nfs/test_nfs.py`)."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.nfs.clients import CLIENTS, Client


@pytest.fixture
def nodes() -> Iterator[list[Client]]:
    clients = [Client(path.name) for path in sorted(CLIENTS.iterdir())]
    yield clients
    for client in clients:
        client.die()
        client.revive()


@pytest.fixture
def folder(nodes: list[Client]) -> str:
    """Make a folder that all nodes see; return its name."""
    name = uuid4().hex
    (nodes[0].path / name).mkdir()
    return name


@pytest.fixture
def places(nodes: list[Client], folder: str) -> list[Path]:
    """Return where the nodes see the same folder."""
    return [client.path / folder for client in nodes]
