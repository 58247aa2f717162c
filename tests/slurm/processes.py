"""Processes and control groups of the machine, read from /proc and /sys/fs/cgroup."""

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")


def pids() -> list[int]:
    """List the processes that exist now."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def is_alive(pid: int) -> bool:
    """Say whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def command_line(pid: int) -> list[str]:
    """Read the arguments of a process; empty where it is gone or belongs to the kernel."""
    return _strings(pid, "cmdline")


def environment(pid: int) -> dict[str, str]:
    """Read the environment that a process started with; empty where it is gone or not ours to read."""
    return {name: value for name, _, value in (entry.partition("=") for entry in _strings(pid, "environ"))}


def program(pid: int) -> str:
    """Name the file that a process executes; empty where it is gone, or belongs to the kernel or another user."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def open_files(pid: int) -> set[str]:
    """List what the open file descriptors of a process lead to."""
    found = set()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(entry.readlink()))
    return found


def descendants(roots: Iterable[int]) -> set[int]:
    """Find the children of processes, their children, and so on, the processes themselves left out."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        with suppress(FileNotFoundError, ProcessLookupError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def send(numbers: Iterable[int], what: signal.Signals) -> None:
    """Send a signal to processes; those that are gone already do not matter."""
    for pid in numbers:
        with suppress(ProcessLookupError):
            os.kill(pid, what)


def wait_until(condition: Callable[[], bool], timeout_s: float, interval_s: float = 0.05) -> bool:
    """Wait for a condition, at most some seconds; return whether it came true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


def node_cgroups(node: str) -> list[Path]:
    """Find the control groups that slurmd made for a node: one per controller in version 1, one in all in version 2."""
    found = [path for path in CGROUP_ROOT.glob(f"*/slurm_{node}") if path.is_dir()]
    return found + [path for path in CGROUP_ROOT.glob(f"system.slice/{node}_slurmstepd.scope") if path.is_dir()]


def cgroup_members(folders: Iterable[Path]) -> set[int]:
    """List the processes in control groups and in the groups below them."""
    found: set[int] = set()
    for folder in folders:
        for path, _, _ in os.walk(folder):
            with suppress(OSError):  # the group can vanish between listing and reading
                found.update(int(line) for line in Path(path, "cgroup.procs").read_text().split())
    return found


def remove_cgroups(folders: Iterable[Path]) -> list[Path]:
    """Remove control groups, innermost first; return those that could not be removed because they are in use."""
    left = []
    for folder in folders:
        for path, _, _ in os.walk(folder, topdown=False):
            try:
                Path(path).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                left.append(Path(path))
    return left


def _strings(pid: int, name: str) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return [text.decode(errors="replace") for text in raw.split(b"\0") if text]
