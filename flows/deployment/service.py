"""Programs that outlive the command which started them: known by process id and start time, never by a name.

Each one notes itself before it becomes the program that was asked for, so none runs unknown. A process id alone proves
nothing: after a restart of the machine, or after some days, it may be somebody else's.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdgat.stage.files import write_json_atomically

POLL_S: Final = 0.1
STOP_TIMEOUT_S: Final = 30.0
LOG_TAIL_LINES: Final = 8
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Process:
    """One process of this machine, told from any other that had or will have its id."""

    pid: int
    start_time: int  # clock ticks since the machine started
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> "Process | None":
        """Look at a running process; None if there is none of that id, or only its remains."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat.rpartition(")")[2].split()  # the name in front of it may hold anything
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]), BOOT_ID.read_text().strip())

    def is_alive(self) -> bool:
        """Tell whether this very process still runs."""
        return Process.of(self.pid) == self

    def variable(self, name: str) -> str | None:
        """Return a variable of its environment, None if it has none or is over."""
        try:
            found = Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return None
        prefix = f"{name}=".encode()
        values = [entry.removeprefix(prefix).decode() for entry in found if entry.startswith(prefix)]
        return values[0] if values and self.is_alive() else None

    def send(self, number: int) -> None:
        """Send a signal, unless it is over."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_alive():
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by force, and with it the others of its group if it leads one: what it started would stay behind."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_alive() and os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self.send(signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; tell whether it came."""
        give_up_at = time.monotonic() + timeout_s
        while self.is_alive():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)  # it may be a child of ours
            if time.monotonic() > give_up_at:
                return False
            time.sleep(POLL_S)
        return True

    def end(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """End it, by force if it takes longer than `timeout_s` seconds; tell whether no force was needed."""
        self.send(signal.SIGTERM)
        in_order = self.wait(timeout_s)
        if not in_order:
            self.kill()
            self.wait(timeout_s)
        return in_order


class Service:
    """One program, its note and its log in the installation's home."""

    def __init__(self, home: Path, name: str) -> None:
        self.name = name
        self.note_path = home / f"{name}.json"
        self.log_path = home / f"{name}.log"

    def process(self) -> Process | None:
        """Return the process that was started last, if it still runs."""
        note = self.note()
        if not note:
            return None
        process = Process(note["pid"], note["start_time"], note["boot_id"])
        return process if process.is_alive() else None

    def note(self) -> dict[str, Any]:
        """Read what was noted at its start; empty if nothing was."""
        try:
            found = json.loads(self.note_path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found if isinstance(found, dict) and {"pid", "start_time", "boot_id"} <= set(found) else {}

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path, **facts: object) -> Process:
        """Start it in a session of its own; `facts` are noted beside its process id."""
        arguments = [str(self.note_path), json.dumps(facts, default=str), *command]
        with self.log_path.open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "flows.deployment.service", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                cwd=folder,
                start_new_session=True,  # neither Ctrl-C nor the end of the terminal is for it
            )
        return Process.of(started.pid) or Process(started.pid, -1, "")

    def forget(self) -> None:
        """Remove the note of a process that is over."""
        self.note_path.unlink(missing_ok=True)

    def log_tail(self, num_lines: int = LOG_TAIL_LINES) -> str:
        """Return the last lines of its log."""
        if not self.log_path.is_file():
            return "(no log)"
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 64_000))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-num_lines:]) or "(nothing)"


def processes_with(variables: Mapping[str, str], word: str) -> Iterator[Process]:
    """Find this user's processes with these environment variables and a word of the command line."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            process = Process.of(int(entry.name))
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                found = set((entry / "environ").read_bytes().split(b"\0"))
            except OSError:  # it ended meanwhile, or is somebody else's
                continue
            if process is not None and word.encode() in arguments and wanted <= found:
                yield process


def _become(note_path: Path, facts: dict[str, Any], command: list[str]) -> None:
    process = Process.of(os.getpid())
    assert process is not None
    write_json_atomically(note_path, {**vars(process), "command": command, **facts})
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be started: {error}")


if __name__ == "__main__":
    _become(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
