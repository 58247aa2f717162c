"""Where the database of an installation lies: SQLite's write-ahead log does not work on network filesystems."""

from pathlib import Path
from typing import Final

import psutil

from flows.deployment.installation import DATABASE_VARIABLE

NETWORK: Final = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "fuse.ceph", "cifs", "smb3"),
        *("panfs", "wekafs", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "afs"),
    )
)


def filesystem_of(path: Path) -> str:
    """Return the kind of the filesystem that a path lies on, as `mount` names it; empty if that is not known."""
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    resolved = path.resolve()
    return next((kinds[folder] for folder in (resolved, *resolved.parents) if folder in kinds), "")


def warn_of_database(address: str, network: frozenset[str] = NETWORK) -> str:
    """Return what a person should know of a database at this address; empty: nothing."""
    from sqlalchemy.engine import make_url

    url = make_url(address)
    kind = filesystem_of(Path(url.database)) if url.get_backend_name() == "sqlite" and url.database else ""
    if kind not in network:
        return ""
    return (
        f"note: {url.database} lies on a network filesystem ({kind}), on which SQLite may damage it: name a file on "
        f"a disk of this machine, {DATABASE_VARIABLE}=sqlite+aiosqlite:////DISK/prefect.db, or use PostgreSQL"
    )
