"""The clients of the NFS machine: nodes that have a network and a host name of their own, and die."""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

CLIENTS = Path("/mnt/clients")
SHARED = Path("/mnt/shared")  # where a node's own processes see the files of all
SERVER = Path("/mnt/server/home")  # the same without NFS
ENTER = 'hostname "$0" && mount --bind "/mnt/clients/$0" /mnt/shared && exec "$@"'


class Client:
    """A node, and the processes that run on it."""

    def __init__(self, name: str) -> None:
        self.name, self.path = name, CLIENTS / name
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, log: Path, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
        """Start a process on the node."""
        command = ["unshare", "--mount", "--uts", "sh", "-c", ENTER, self.name, *words]
        with log.open("ab") as stream:
            process = subprocess.Popen(
                command, stdout=stream, stderr=stream, start_new_session=True, env={**os.environ, **(environment or {})}
            )
        self._started.append(process)
        return process

    def die(self) -> None:
        """Take the node away: nothing that its kernel says when its processes end reaches the server."""
        subprocess.run(["ip", "link", "set", f"link-{self.name}", "down"], check=True)
        for process in self._started:
            if process.poll() is None:
                for session in _sessions_below(process.pid):
                    os.killpg(session, signal.SIGKILL)

    def revive(self) -> None:
        """Give the node its network back; NFS asks for the rest itself."""
        subprocess.run(["ip", "link", "set", f"link-{self.name}", "up"], check=True)
        self._started.clear()


def _sessions_below(pid: int) -> set[int]:
    """Return the process groups of a process and of all that come from it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {os.getpgid(one) for one in found if Path(f"/proc/{one}").exists()}
