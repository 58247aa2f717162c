"""Slurm's commands as a cluster in trouble has them: they do what they are asked, and a share of answers is spoiled.

`write_spoiled_commands` puts them into a folder that goes first in PATH. Each spoiled answer, and each `scancel` (which
is never spoiled) with what its jobs were doing, is a line of `faults.jsonl` in that folder; its file `odds` has the
share. Standard library alone, and no site packages: `squeue` is asked every second.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

QUESTIONS = ("squeue", "scontrol", "sacct", "sinfo")
COMMANDS = (*QUESTIONS, "sbatch", "scancel")
LOG, ODDS = "faults.jsonl", "odds"
LATE_S, HUNG_S = (1.0, 20.0), 45.0  # longer than anybody waits for one of Slurm's commands
ERRORS = (
    "Unable to contact slurm controller (connect failure)",
    "Socket timed out on send/recv operation",
    "Zero Bytes were transmitted or received",
    "Unexpected message received",
    "Slurm temporarily unable to accept job, sleeping and retrying",
    "Protocol authentication error",
    "Resource temporarily unavailable",
    "slurmctld is in standby mode",
)
BANNERS = (
    b"*** Maintenance on Tuesday from 8:00: all nodes ***\n",
    b"Welcome to the cluster\n\n",
    b"slurm_load_jobs: info: cached answer of 3 s ago\n",
    "Pl\xe4tze sind knapp | bitte warten|\n".encode("latin-1"),
)
# What a question is answered, and what happens to a submission.
ANSWERS = (
    "late",
    "hung",
    "error",
    "empty",
    "cut",
    "cut and error",
    "banner",
    "other columns",
    "UTF-16",
    "other bytes",
    "killed",
)
SUBMISSIONS = (
    "late",
    "hung after it",
    "error before it",
    "error after it",
    "banner",
    "empty",
    "UTF-16",
    "killed after it",
)


def write_spoiled_commands(folder: Path, odds: float, out: Path, search_path: str) -> str:
    """Write the commands, for a run in `out`, and return a PATH that leads to them first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ODDS).write_text(str(odds))
    for name in COMMANDS:
        real = shutil.which(name, path=search_path)
        if real is not None:
            words = f'{sys.executable} -I -S {Path(__file__).resolve()} {folder} {out} {real} "$@"'
            # A job inherits the environment of its `sbatch`, and with it files that can fail.
            unset = "" if name == "sbatch" else "unset LD_PRELOAD\n"
            (folder / name).write_text(f"#!/bin/sh\n{unset}exec {words}\n")
            (folder / name).chmod(0o755)
    return f"{folder}:{search_path}"


def main(folder: Path, out: Path, real: str, arguments: list[str]) -> int:
    """Run one command, spoiled or not, and return its exit status."""
    name = Path(real).name
    if name == "scancel":
        _note(folder, name, "scancel", arguments=arguments, jobs=_jobs(real, arguments, out), caller=_caller())
        os.execv(real, [real, *arguments])
    if random.random() >= float((folder / ODDS).read_text()) or "--version" in arguments:
        os.execv(real, [real, *arguments])
    kind = random.choice(ANSWERS if name in QUESTIONS else SUBMISSIONS)
    if kind == "late":
        time.sleep(random.uniform(*LATE_S))
    error = f"{name}: error: {random.choice(ERRORS)}\n".encode()
    if name == "squeue":
        error = error.replace(b"squeue: error", b"slurm_load_jobs error")
    if kind == "error before it" or (kind == "error" and random.random() < 0.5):
        _note(folder, name, kind, arguments=arguments)
        return _answer(b"", error, 1)
    done = subprocess.run([real, *arguments], capture_output=True, check=False)
    text, status = done.stdout, done.returncode
    _note(folder, name, kind, arguments=arguments, answer=text.decode(errors="replace")[:400], status=status)
    if kind.startswith("hung"):
        time.sleep(HUNG_S)
    if kind in ("error", "error after it"):
        return _answer(b"", error, 1)
    if kind.startswith("killed"):
        sys.stdout.flush()
        os.kill(os.getpid(), 9)
    if kind == "cut and error":
        return _answer(text[: random.randrange(len(text) + 1)], error, 1)
    return _answer(_spoiled(text, kind), done.stderr, status)


def _spoiled(text: bytes, kind: str) -> bytes:
    if kind == "empty":
        return b""
    if kind == "cut":
        return text[: random.randrange(len(text) + 1)]
    if kind == "banner":
        return random.choice(BANNERS) + text
    if kind == "other columns":  # as somebody's wrapper, or another version, prints them
        return text.replace(b"|", b" ").replace(b"JobState=", b"State=")
    if kind == "UTF-16":
        return text.decode(errors="replace").encode("utf-16")
    if kind == "other bytes":
        at = random.randrange(len(text) + 1)
        return text[:at] + b"\xe9\xff\x00" + text[at:]
    return text


def _answer(text: bytes, error: bytes, status: int) -> int:
    sys.stdout.buffer.write(text)
    sys.stderr.buffer.write(error)
    return status


def _jobs(scancel: str, arguments: list[str], out: Path) -> list[dict[str, object]]:
    """Say of each job that is to be cancelled what it does at this moment."""
    names = [word.partition("=")[2] for word in arguments if word.startswith("--name=")]
    question = [str(Path(scancel).with_name("squeue")), "--noheader", "--format=%A|%T|%j|%N"]
    lines = subprocess.run(question, capture_output=True, text=True, check=False).stdout.splitlines()
    found: list[dict[str, object]] = []
    for line in lines:
        number, state, name, node = line.split("|", 3)
        if number in arguments or name in names:
            reported = any(out.glob(f"stages/*/report-{number}.json"))
            found.append({"job": number, "state": state, "name": name, "node": node, "reported": reported})
    return found


def _caller() -> str:
    return Path(f"/proc/{os.getppid()}/cmdline").read_bytes()[:200].replace(b"\0", b" ").decode(errors="replace")


def _note(folder: Path, command: str, kind: str, **more: object) -> None:
    line = json.dumps({"time": time.time(), "command": command, "kind": kind, **more}) + "\n"
    descriptor = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
