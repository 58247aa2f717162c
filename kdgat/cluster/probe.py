"""What a job finds on a node for `kdgat doctor`: `python -m kdgat.cluster.probe`, started as the job of a stage is.

It holds one lock and asks for one that whoever submitted it holds; files in the shared folder carry question and
answer, as those of runs do.
"""

import fcntl
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel

from kdgat.base import wait_until, write_bytes_atomically
from kdgat.cluster.attendance import ANSWER_S, read_connection
from kdgat.cluster.filesystem import CLOCK_TOLERANCE_S, Check, ask_both_locks, ask_lock, check_folder, describe_offset
from kdgat.cluster.job import node_name, parse_options
from kdgat.stage import package_version
from kdgat.stage.gpus import Card, list_cards, num_given_gpus

PROBE_MODULE: Final = "kdgat.cluster.probe"
LOGIN_LOCK: Final = "login.lock"
NODE_LOCK: Final = "node.lock"
FINDINGS: Final = "findings.json"
ANSWER: Final = "answer"  # empty: whoever submitted the job has read the findings
LAST: Final = "last"  # the node's clock when it saw the answer
SHOWN_S: Final = 120.0  # twice what a network filesystem keeps the names in a folder for, unless mounted otherwise
OTHER_KDGAT: Final = "install kdgat for nodes, and name that Python, or an image, in the site file (python, image)"
PACKAGES: Final = ("kdgat", "torch", "distributed")


class Findings(BaseModel):
    """What a job found."""

    node: str
    checks: list[Check]
    locks: list[str]  # answers for the lock that is held where the job was submitted
    versions: dict[str, str | None]
    unreachable: str  # why whoever submitted the job is not reached; empty: it is
    cards: list[Card] = []  # that the driver shows, of a job that asked for GPUs


def main() -> None:
    """Write down what there is to find in the folder of the command line, and keep a lock until it was read."""
    options = parse_options(sys.argv[1:])
    folder = Path(options.directory)
    with (folder / NODE_LOCK).open("a+b") as lock:
        ask_lock(lock, fcntl.LOCK_EX)
        (folder / "node").mkdir()
        findings = Findings(
            node=node_name(),
            checks=list(check_folder(folder / "node", "filesystem")),
            locks=ask_both_locks(folder / LOGIN_LOCK),
            versions=versions(),
            unreachable=_try_to_reach(options.connection),
            cards=list(list_cards()) if num_given_gpus() else [],
        )
        write_bytes_atomically(folder / FINDINGS, findings.model_dump_json().encode())
        if wait_until((folder / ANSWER).exists, SHOWN_S):
            write_bytes_atomically(folder / LAST, str(time.time()).encode())


def versions() -> dict[str, str | None]:
    """Return what must be the same on all machines of a run; None for what is not installed."""
    return {"Python": platform.python_version(), **{name: package_version(name) for name in PACKAGES}}


def check_versions(theirs: Mapping[str, str | None], ours: Mapping[str, str | None]) -> Check:
    """Compare the versions on a node with those here."""
    different = {name: version for name, version in theirs.items() if version != ours.get(name)}
    if not different:
        return Check("", "good", "the same as here: " + ", ".join(f"{name} {theirs[name]}" for name in theirs))
    text = "; ".join(
        f"{name} {version or 'is not installed'}, here {ours.get(name)}" for name, version in different.items()
    )
    if "kdgat" in different or ("torch" in different and theirs["torch"] is None):
        return Check("", "wrong", text, OTHER_KDGAT)
    fix = "stages run, not to the same bits" + ("; reports come by files alone" if "distributed" in different else "")
    return Check("", "warning", text, f"{fix}: install the same there, or name python or image in the site file")


def check_cards(cards: Sequence[Card]) -> Check:
    """Tell which GPU a job was given that asked for one."""
    if not cards:
        fix = "correct gpu_type, gpu_request, gpu_partition of the site, or ask the site's support: stages would fail"
        return Check("", "wrong", "nvidia-smi shows none, though the job asked for one", fix)
    first, number = cards[0], f"{len(cards)} x " if len(cards) > 1 else ""
    major, minor = first.capability
    return Check("", "good", f"{number}{first.name} ({major}.{minor}), driver {first.driver}")


def check_clock_of_node(ahead_s: float, unsure_s: float) -> Check:
    """Tell what it means that a node's clock is so far from the one here."""
    text = f"{describe_offset(ahead_s)} the one here" + (f", give or take {unsure_s:.0f} s" if unsure_s > 1.0 else "")
    if abs(ahead_s) - unsure_s <= CLOCK_TOLERANCE_S:
        return Check("", "good", text)
    when = "before they need to" if ahead_s > 0 else "too late for their walltime"
    return Check("", "warning", text, f"stages save {when}: raise training.checkpoint_margin_s, or have NTP set it")


def check_delay(there_and_back_s: float, silence_timeout_s: float) -> Check:
    """Tell what it means that files take so long to show on another machine."""
    text = f"{there_and_back_s:.1f} s for a file and the answer to it"
    if there_and_back_s < silence_timeout_s / 2:
        return Check("", "good", text)
    fix = f"jobs may count as frozen: raise silence_timeout_s (now {silence_timeout_s:g}) of the site"
    return Check("", "warning", text, fix)


def _try_to_reach(connection_file: Path) -> str:
    connection = read_connection(connection_file)
    if connection is None:
        return f"{connection_file.name} cannot be read"
    address = urlsplit(connection.address)
    try:
        socket.create_connection((str(address.hostname), int(address.port or 0)), ANSWER_S).close()
    except OSError as error:
        return f"{address.netloc}: {error}"
    return ""


if __name__ == "__main__":
    main()
