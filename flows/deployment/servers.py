"""Which servers of installations this user runs, wherever their homes are: for who has lost sight of one."""

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flows.deployment.installation import HOME_VARIABLE
from flows.deployment.service import processes_with
from flows.loopback import LOOPBACK, is_ours

URL_VARIABLE: Final = "PREFECT_API_URL"
PORT_VARIABLE: Final = "KDGAT_PORT"
WORDS: Final = ("server", "start")  # of its command, whoever gave it: `make deploy`, systemd


def homes_of_servers() -> dict[int, Path]:
    """Return the homes of the installations whose servers listen at this moment, by port."""
    found = {}
    for process in processes_with({}, *WORDS):
        environment = process.info["environ"] or {}
        port, home = environment.get(PORT_VARIABLE, ""), environment.get(HOME_VARIABLE)
        if port.isdecimal() and home and is_ours(int(port)):
            found[int(port)] = Path(home)
    return dict(sorted(found.items()))


def home_of_server(port: int) -> Path | None:
    """Return the home of the installation whose server listens on a port of the loopback; None if it is none."""
    return homes_of_servers().get(port)


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
