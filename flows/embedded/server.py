"""An embedded Prefect API for one run: a child process on the loopback, with its own database, that ends with us.

Prefect's own ephemeral server shares this process's terminal and database file: Ctrl-C ends it before the flow has
reported its state, a killed flow leaves it behind, and two runs at once wait for each other's database lock.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flows.compatibility import OF_EVERY_SERVER, require_compatible
from flows.deployment.installation import CLIENT_AUTH_VARIABLE, SERVER_AUTH_VARIABLE, Installation, new_auth_string
from flows.embedded.database import EmbeddedDatabase
from flows.embedded.loopback import answers, is_here, may_be_told, reserved_port
from flows.log_tail import last_lines, trim
from kdgat.base import UserError, wait_until
from kdgat.base.environment import NO_PROXY_AT_ALL, OWN_HOSTS, of_children
from kdgat.cluster.child import describe_limit

API_URL_VARIABLE: Final = "PREFECT_API_URL"
START_TIMEOUT_VARIABLE: Final = "KDGAT_SERVER_START_TIMEOUT_S"
START_TIMEOUT_S: Final = 180.0  # 3 to 30 s are usual; a busy two-core machine needs its time
LISTENER_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 20.0
OF_PERSONS: Final = ("PREFECT_HOME", "PREFECT_LOGGING_")  # of Prefect's settings: where, and what it says
NO_PROFILES: Final = os.devnull
PRIVACY: Final = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def prefect_api(database: Path, log: Path, require_wanted: Callable[[], None] = lambda: None) -> Iterator[str]:
    """Yield the URL of a Prefect API: the configured one, or an embedded server that stops with the context.

    The embedded one asks for a string, which is made anew each time and lies in the environment of this process.

    Args:
        database: file in which what the embedded server holds is kept; the history of earlier runs in it stays.
        log: file that takes what the embedded server prints.
        require_wanted: raises an error where nobody wants it any more; called while it is waited for.

    Raises:
        UserError: if an installed package breaks the embedded server.
        UserError: if nobody listens where one is configured, or the embedded server ends, or does not answer in time.
    """
    with _environment({name: os.environ.get(name, value) for name, value in PRIVACY.items()}):
        configured = configured_api_url()
        if configured is not None:
            _require_listener(configured)
            with _environment(_installation_auth(configured)), _environment(_direct_way(configured)):
                yield configured
            return
        require_compatible(OF_EVERY_SERVER)
        with _embedded(database, log, require_wanted) as (url, auth_string), _environment(_stated(url, auth_string)):
            try:
                yield url
            finally:
                _drain_prefect_queues()


@contextlib.contextmanager
def _embedded(database: Path, log: Path, require_wanted: Callable[[], None]) -> Iterator[tuple[str, str]]:
    """Start a server, yield its address and the string that it asks for, and keep its database when it has ended.

    One that ends over the database of earlier commands, of a newer Prefect or damaged, is started with an empty one.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    trim(log)
    with (
        tempfile.TemporaryDirectory(prefix="kdgat-prefect-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as ports,
    ):
        local, auth_string = EmbeddedDatabase(Path(folder), database.absolute()), new_auth_string()
        local.fetch()
        process, url = _start(local, auth_string, log.absolute(), ports)
        try:
            has_ended = not _wait_until_up(process, url, auth_string, log, require_wanted)
            if has_ended and local.path.is_file():
                _stop(process)
                said = _last_line(log)
                local.forget()
                process, url = _start(local, auth_string, log.absolute(), ports)
                if has_ended := not _wait_until_up(process, url, auth_string, log, require_wanted):
                    local.forget()
                else:
                    local.set_aside(said)
            if has_ended:
                raise UserError(
                    f"the embedded Prefect API ended with status {process.returncode}"
                    f"{describe_limit(-process.returncode)}; its log {log} ends with: {_last_line(log)}"
                )
            yield url, auth_string
        finally:
            _stop(process)
            local.keep()


def _start(
    local: EmbeddedDatabase, auth_string: str, log: Path, ports: contextlib.ExitStack
) -> "tuple[subprocess.Popen[bytes], str]":
    """Start a server over a database, and return it with the address at which it will be, reserved by `ports`."""
    others = {name: value for name, value in of_children(os.environ).items() if not _is_foreign(name)}
    serving = ports.enter_context(reserved_port())
    with serving, log.open("ab") as output:
        words = (os.getpid(), serving.fileno(), local.folder, local.kept, log)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.embedded.process", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={
                **others,
                "PREFECT_PROFILES_PATH": NO_PROFILES,
                "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{local.path}",
                "PREFECT_SERVER_UI_ENABLED": "false",
                "TMPDIR": str(local.folder),  # SQLite tries a folder that cannot be written to
                SERVER_AUTH_VARIABLE: auth_string,
            },
            cwd=local.folder,  # Prefect reads settings of the folder where it is started, too
            pass_fds=[serving.fileno()],
            start_new_session=True,  # Ctrl-C is for the flow, which then still has somebody to report to
        )
        host, port = serving.getsockname()
    return process, f"http://{host}:{port}/api"


def _stated(url: str, auth_string: str) -> dict[str, str | None]:
    """Return what the environment says while there is an embedded server: its requests are for the loopback alone.

    What a person or a site has set for other servers of Prefect has no part in it.
    """
    stated: dict[str, str | None] = {name: None for name in os.environ if _is_foreign(name)}
    return stated | {
        "PREFECT_PROFILES_PATH": NO_PROFILES,
        API_URL_VARIABLE: url,
        CLIENT_AUTH_VARIABLE: auth_string,
        **_direct_way(url),
    }


def _is_foreign(name: str) -> bool:
    return name.startswith("PREFECT_") and not name.startswith(OF_PERSONS) and name not in PRIVACY


def _direct_way(url: str) -> dict[str, str]:
    """Return the variables by which no proxy is asked for the loopback, if `url` is there; what they say stays.

    Where httpx can do nothing with a proxy, as SOCKS without its package, it refuses all hosts: then none is asked.
    """
    import httpx

    if not is_here(urlsplit(url).hostname):
        return {}
    said, direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "", OWN_HOSTS
    try:
        httpx.Client(verify=False).close()
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        names = ", ".join(sorted(name for name in os.environ if name.lower().endswith("_proxy")))
        logger.warning("%s: this command uses no proxy (%s)", names, error)
        direct = NO_PROXY_AT_ALL
    direct = ",".join(filter(None, (said, direct)))
    return {"no_proxy": direct, "NO_PROXY": direct}


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Change the environment of all threads (None: unset), and take it back; a settings context reaches one thread."""
    from prefect.context import refresh_global_settings_context

    def put(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        refresh_global_settings_context()

    previous = {name: os.environ.get(name) for name in variables}
    put(variables)
    try:
        yield
    finally:
        put(previous)


def _installation_auth(url: str) -> dict[str, str]:
    """Return the variable that lets this process in, where `url` is the server of the user's own installation."""
    address = urlsplit(url)
    if CLIENT_AUTH_VARIABLE in os.environ or not is_here(address.hostname):
        return {}
    here = Installation.find()
    known = here.auth and here.path.is_file() and address.port == here.port and may_be_told(url)
    return {CLIENT_AUTH_VARIABLE: here.auth_string} if known else {}


def _require_listener(url: str) -> None:
    """Raise UserError if nobody listens at an address of this machine: Prefect would end with a traceback."""
    address = urlsplit(url)
    if not is_here(address.hostname):
        return  # perhaps by a proxy, which this process does not ask
    try:
        socket.create_connection((str(address.hostname), address.port or 80), LISTENER_TIMEOUT_S).close()
    except OSError as error:
        raise UserError(
            f"no Prefect server answers at {API_URL_VARIABLE}={url} ({error.strerror or error}): start it with "
            f"`make deploy`, or `unset {API_URL_VARIABLE}`, and each command starts its own"
        ) from error


def configured_api_url() -> str | None:
    """Return the API that the environment or the active Prefect profile names."""
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def _drain_prefect_queues() -> None:
    """Send the log lines and events that still wait in this process, as long as there is a server to take them."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=DRAIN_TIMEOUT_S)
    EventsWorker.drain_all(timeout=DRAIN_TIMEOUT_S)


def _wait_until_up(
    process: subprocess.Popen[bytes], url: str, auth_string: str, log: Path, require_wanted: Callable[[], None]
) -> bool:
    """Wait until a server answers; tell whether it does, or has ended. UserError if it does neither."""
    limit_s = float(os.environ.get(START_TIMEOUT_VARIABLE, START_TIMEOUT_S))

    def is_decided() -> bool:
        require_wanted()
        return process.poll() is not None or answers(url, auth_string)

    wait_until(is_decided, limit_s)
    if process.poll() is not None:
        return False
    if answers(url, auth_string):
        return True
    raise UserError(
        f"the embedded Prefect API did not answer within {limit_s:g} s: give it more time by "
        f"{START_TIMEOUT_VARIABLE}=600, or start a server with `prefect server start` and set {API_URL_VARIABLE}="
        f"http://127.0.0.1:4200/api; its log {log} ends with: {_last_line(log)}"
    )


def _last_line(log: Path) -> str:
    """Return the last line of a log that names an error, or the last one."""
    lines = last_lines(log).strip().splitlines()
    return next((line for line in reversed(lines) if "Error: " in line), lines[-1])


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
