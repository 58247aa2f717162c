"""Programs that outlive the command which started them: known by a variable of their environment, never by a name.

The note of each is written before it starts, so none runs unknown. No process id is kept: after a restart of the
machine, or after some days, it may be somebody else's.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psutil

from flows.deployment.installation import HOME_VARIABLE, NETWORK_FILESYSTEMS, filesystem_of
from flows.embedded.loopback import LOOPBACK, is_ours
from flows.log_tail import trim
from kdgat.base import wait_until, write_json_atomically
from kdgat.base.kept import refuse_newer

MARK: Final = "KDGAT_SERVICE"  # in the environment of a program, and of what it starts: where its note is
NOTES: Final = ("server", "worker", "update")  # what may name the machine; the last one where systemd keeps the others
UNKNOWN: Final = "unknown"
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
STOP_TIMEOUT_S: Final = 30.0
URL_VARIABLE: Final = "PREFECT_API_URL"
PORT_VARIABLE: Final = "KDGAT_PORT"
SERVER_WORDS: Final = ("server", "start")  # of its command, whoever gave it: `make deploy`, systemd


class Service:
    """One program, its note and its log in the installation's home."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = name
        self.note_path = home / f"{name}.json"
        self.log_path = home / f"{name}.log"

    def process(self) -> psutil.Process | None:
        """Return the process that was started last, if it still runs."""
        command = self.note().get("command")
        marked = processes_with({MARK: str(self.note_path.resolve())})
        return next((process for process in marked if process.info["cmdline"] == command), None)

    def note(self) -> dict[str, Any]:
        """Read what was noted at its start; empty if nothing was."""
        return read_note(self.note_path)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, **facts: object
    ) -> psutil.Process:
        """Start it in a session of its own; `facts` are noted beside the command and this machine."""
        write_json_atomically(self.note_path, {"command": list(command), **this_machine(), **facts})
        trim(self.log_path)
        with self.log_path.open("ab") as log:
            return psutil.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, MARK: str(self.note_path.resolve())},
                cwd=folder,
                start_new_session=True,  # neither Ctrl-C nor the end of the terminal is for it
            )

    def forget(self) -> None:
        """Remove the note of a process that is over."""
        self.note_path.unlink(missing_ok=True)


def this_machine() -> dict[str, str]:
    """Return what notes say of the machine: its name, and what differs from one start of it to the next."""
    return {"host": socket.gethostname(), "boot_id": BOOT_ID.read_text().strip() if BOOT_ID.is_file() else ""}


def other_machine(home: Path, network: frozenset[str] = NETWORK_FILESYSTEMS) -> str:
    """Return the name of the machine on which an installation runs, as its notes say, if it is not this one.

    Homes are shared, processes are not: what runs there is not seen here. Notes of earlier versions name no machine:
    that is this one, unless others may see the home, too.
    """
    services = [Service(home, name) for name in NOTES]
    unnamed = UNKNOWN if filesystem_of(home) in network else socket.gethostname()
    others = {str(note.get("host", unnamed)) for service in services if (note := service.note())}
    others.discard(socket.gethostname())
    # One that is seen is here, whatever this machine was called when it began.
    return "" if not others or any(service.process() for service in services) else min(others)


def trim_logs() -> None:
    """Shorten what the programs of this installation have printed; before each run, a step of `prefect.yaml`.

    They outlive every command, and print what runs print; under systemd its journal takes that.
    """
    if MARK in os.environ:
        for path in Path(os.environ[MARK]).parent.glob("*.log"):
            trim(path)


def read_note(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if it is not there, or damaged. UserError for that of a newer kdgat."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    refuse_newer(found, path)
    return found if isinstance(found, dict) else {}


def processes_with(variables: Mapping[str, str], *words: str) -> list[psutil.Process]:
    """List this user's processes with these environment variables and words of the command line."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])  # None where it is somebody else's, or over
        if variables.items() <= (process.info["environ"] or {}).items()
        and set(words) <= set(process.info["cmdline"] or ())
    ]


def is_alive(process: psutil.Process) -> bool:
    """Tell whether this very process still runs; one of which only the remains are there does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def ask_to_end(process: psutil.Process) -> None:
    """Send SIGTERM, unless it is over."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()


def kill(process: psutil.Process) -> None:
    """End it by force, and with it the others of its group if it leads one: what it started would stay behind."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        if is_alive(process) and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def have_ended(processes: Collection[psutil.Process], timeout_s: float) -> bool:
    """Wait for the end of processes, at most `timeout_s` seconds; tell whether it came."""
    return wait_until(lambda: not any(map(is_alive, processes)), timeout_s)


def end(process: psutil.Process, timeout_s: float = STOP_TIMEOUT_S) -> bool:
    """End it, by force if it takes longer than `timeout_s` seconds; tell whether no force was needed."""
    ask_to_end(process)
    in_order = have_ended([process], timeout_s)
    if not in_order:
        kill(process)
        have_ended([process], timeout_s)
    return in_order


def homes_of_servers() -> dict[int, Path]:
    """Return the homes of the installations whose servers listen at this moment, by port."""
    found = {}
    for process in processes_with({}, *SERVER_WORDS):
        environment = process.info["environ"] or {}
        port, home = environment.get(PORT_VARIABLE, ""), environment.get(HOME_VARIABLE)
        if port.isdecimal() and home and is_ours(int(port)):
            found[int(port)] = Path(home)
    return dict(sorted(found.items()))


def servers_text(fix: str) -> str:
    """Name the servers that run with the command that reaches each, to be added to a message; empty if there are none.

    Where PREFECT_API_URL names one of them, that one is meant.

    Args:
        fix: that command, with `{variable}` and `{home}` in it.
    """
    running = {port: home for port, home in homes_of_servers().items() if home != _chosen()}
    named = urlsplit(os.environ.get(URL_VARIABLE, "")).port
    meant = {named: running[named]} if named in running else running
    texts = [
        f"the server at http://{LOOPBACK}:{port} is of {home}: `{fix.format(variable=HOME_VARIABLE, home=home)}`"
        for port, home in meant.items()
    ]
    return "".join(f"; {text}" for text in texts)


def _chosen() -> Path | None:
    home = os.environ.get(HOME_VARIABLE)
    return Path(home).expanduser().absolute() if home else None
