from pathlib import Path

import pytest

from flows.deployment.installation import NETWORK_FILESYSTEMS, filesystem_of, warn_of_database


def test_a_path_has_the_kind_of_the_nearest_mount_above_it(tmp_path: Path) -> None:
    assert filesystem_of(Path("/proc/self/status")) == "proc"
    (tmp_path / "link").symlink_to("/proc/self")
    assert filesystem_of(tmp_path / "link" / "not there") == "proc"
    assert filesystem_of(tmp_path) not in ("", "proc")


@pytest.mark.parametrize(
    ("address", "is_told"),
    [
        ("sqlite+aiosqlite:////proc/self/prefect.db", True),
        ("sqlite+aiosqlite:////prefect.db", False),
        ("sqlite+aiosqlite:///:memory:", False),
        ("postgresql+asyncpg://me:secret@proc/self", False),
    ],
)
def test_who_keeps_sqlite_on_a_network_filesystem_is_told(address: str, is_told: bool) -> None:
    """No test has such a filesystem: `proc` stands for one."""
    assert {"nfs4", "lustre", "gpfs"} < NETWORK_FILESYSTEMS
    told = warn_of_database(address, network=frozenset({"proc"}))
    assert bool(told) == is_told
    assert not is_told or "(proc)" in told
