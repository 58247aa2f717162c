"""A Linux with a real NFS server and real clients, in one process: User-mode Linux, which boots in two seconds."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).with_name("machine.sh")
STATUS = re.compile(r"exit status (\d+) of the NFS machine")
NEEDED = {"linux.uml": "user-mode-linux", "mount.nfs": "nfs-common", "rpc.nfsd": "nfs-kernel-server", "ip": "iproute2"}
NEEDED |= {"modprobe": "kmod", "rpcbind": "rpcbind"}
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Answer(NamedTuple):
    """Exit status, None where the machine itself ended, and everything printed."""

    status: int | None
    printed: str


def missing_packages() -> list[str]:
    """Name Debian's packages that are not installed."""
    return [package for program, package in NEEDED.items() if shutil.which(program, path=SEARCH_PATH) is None]


def run_in_machine(lines: Sequence[str], *, version: str, timeout_s: float, memory: str = "2G") -> Answer:
    """Boot a machine, run lines of the shell in it, and end it; `version` is that of NFS, as 4.2."""
    with tempfile.TemporaryDirectory(prefix="kdgat-nfs-") as name:
        folder = Path(name)
        (folder / "job").write_text("\n".join(lines) + "\n")
        with (folder / "disk").open("wb") as disk:
            disk.truncate(8 << 30)  # sparse
        command = [
            *("linux.uml", "rootfstype=hostfs", "rootflags=/", "ro", f"mem={memory}", f"ubd0={folder / 'disk'}"),
            *(f"uml_dir={folder}", "con=null", "con0=null,fd:1", "quiet", "init=/bin/bash"),
            *("--", str(SCRIPT), str(folder / "job"), version),
        ]
        shm = Path("/dev/shm")
        environment = {**os.environ, "PATH": SEARCH_PATH, "TMPDIR": str(shm if shm.is_dir() else folder)}
        with (folder / "console").open("wb") as console:
            machine = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
            try:
                machine.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if machine.poll() is None:
                    os.killpg(machine.pid, signal.SIGKILL)
                    machine.wait()
        printed = (folder / "console").read_text(errors="replace").replace("\r\n", "\n")
    found = STATUS.search(printed)
    return Answer(int(found[1]) if found else None, printed)
