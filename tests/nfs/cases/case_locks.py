"""A lock reaches from node to node, and that of a dead node stays until its lease is over (NFSv4)."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from kdgat.registry import Registry
from kdgat.stage.errors import StageBusyError
from kdgat.stage.owner import own, require_free
from tests.nfs.clients import SHARED, Client
from tests.support.waiting import wait_until

pytestmark = pytest.mark.processes
OWNER = """
import sys, time
from pathlib import Path
from kdgat.stage.owner import own
with own(Path(sys.argv[1]) / "lock", Path(sys.argv[1]) / "owner.json"):
    Path(sys.argv[2]).touch()
    time.sleep(1000)
"""


def own_at(place: Path) -> None:
    with own(place / "lock", place / "owner.json"):
        pass


@pytest.fixture
def owner(nodes: list[Client], folder: str, tmp_path: Path) -> "subprocess.Popen[bytes]":
    """Let a process of the first node own the folder."""
    ready = tmp_path / "owns"
    process = nodes[0].start(
        *(sys.executable, "-c", OWNER, str(SHARED / folder), str(ready)), log=tmp_path / "owner.log"
    )
    wait_until(ready.exists, "the owner", log=(tmp_path / "owner.log").read_text)
    return process


def test_locks_are_those_of_byte_ranges(places: list[Path]) -> None:
    (places[0] / "lock").touch()
    with (places[0] / "lock").open("ab") as file, pytest.raises(OSError, match="Bad file descriptor"):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with (places[0] / "lock").open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_folder_in_use_on_another_node_is_busy_to_owners_and_to_those_who_only_look(
    owner: "subprocess.Popen[bytes]", places: list[Path]
) -> None:
    for place in places[1:]:
        with pytest.raises(StageBusyError, match=r"in use by pid \d+ on a:"):
            own_at(place)
        with pytest.raises(StageBusyError, match=r"in use by pid \d+ on a:"):
            require_free(place / "lock", place / "owner.json")


def test_who_only_looks_on_another_node_takes_nobody_the_folder(places: list[Path]) -> None:
    own_at(places[0])
    require_free(places[1] / "lock", places[1] / "owner.json")
    with (places[2] / "lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        require_free(places[1] / "lock", places[1] / "owner.json")
    own_at(places[1])


def test_the_folder_of_a_killed_process_is_free_at_once(owner: "subprocess.Popen[bytes]", places: list[Path]) -> None:
    owner.kill()
    owner.wait()
    own_at(places[1])


def test_the_folder_of_a_dead_node_is_another_ones_when_its_lease_is_over(
    owner: "subprocess.Popen[bytes]", nodes: list[Client], places: list[Path]
) -> None:
    nodes[0].die()

    def is_free() -> bool:
        try:
            own_at(places[1])  # the server, too, lets it wait: it asks the dead node for the file
        except StageBusyError:
            return False
        return True

    wait_until(is_free, "the end of the lease")


def test_a_registry_that_a_dead_node_was_writing_is_written_by_another(
    nodes: list[Client], folder: str, places: list[Path], tmp_path: Path
) -> None:
    registry = Registry(places[1])
    model = {"family": "can", "dataset": "cars"}
    entry = registry.add({"weights": b"1"}, content="1" * 64, **model)
    ready = tmp_path / "owns"
    script = OWNER.replace('/ "lock"', '/ "registry.lock"')
    script = script.replace('/ "registry.lock"', f'/ "{registry.lock_path.name}"')
    script = script.replace('/ "owner.json"', f'/ "{registry.owner_path.name}"')
    nodes[0].start(sys.executable, "-c", script, str(SHARED / folder), str(ready), log=tmp_path / "log")
    wait_until(ready.exists, "the owner", log=(tmp_path / "log").read_text)
    nodes[0].die()
    registry.promote(entry.id, reason="better", by="test")
    assert Registry(places[2]).in_service(**model) == entry
