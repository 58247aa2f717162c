"""An embedded Prefect API for one run: a child process on the loopback, with its own database, that ends with us.

Prefect's own ephemeral server shares this process's terminal and database file: Ctrl-C ends it before the flow has
reported its state, a killed flow leaves it behind, and two runs at once wait for each other's database lock.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from flows.compatibility import OF_EVERY_SERVER, require_compatible
from flows.deployment.installation import CLIENT_AUTH_VARIABLE, SERVER_AUTH_VARIABLE, Installation, new_auth_string
from flows.embedded.database import EmbeddedDatabase
from flows.embedded.loopback import answers, is_here, may_be_told, reserved_port
from flows.log_tail import last_lines, trim
from kdgat.base import UserError, wait_until

API_URL_VARIABLE: Final = "PREFECT_API_URL"
START_TIMEOUT_VARIABLE: Final = "KDGAT_SERVER_START_TIMEOUT_S"
START_TIMEOUT_S: Final = 180.0  # 3 to 30 s are usual; a busy two-core machine needs its time
LISTENER_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 20.0
PRIVACY: Final = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}


@contextlib.contextmanager
def prefect_api(database: Path, log: Path) -> Iterator[str]:
    """Yield the URL of a Prefect API: the configured one, or an embedded server that stops with the context.

    The embedded one asks for a string, which is made anew each time and lies in the environment of this process.

    Args:
        database: file in which what the embedded server holds is kept; the history of earlier runs in it stays.
        log: file that takes what the embedded server prints.

    Raises:
        UserError: if an installed package breaks the embedded server.
        UserError: if nobody listens where one is configured, or the embedded server does not answer in time.
    """
    with _environment({name: os.environ.get(name, value) for name, value in PRIVACY.items()}):
        configured = configured_api_url()
        if configured is not None:
            _require_listener(configured)
            with _environment(_installation_auth(configured)):
                yield configured
            return
        require_compatible(OF_EVERY_SERVER)
        with (
            _embedded(database, log) as (url, auth_string),
            _environment({API_URL_VARIABLE: url, CLIENT_AUTH_VARIABLE: auth_string}),
        ):
            try:
                yield url
            finally:
                _drain_prefect_queues()


@contextlib.contextmanager
def _embedded(database: Path, log: Path) -> Iterator[tuple[str, str]]:
    """Start a server, yield its address and the string that it asks for, and keep its database when it has ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    trim(log)
    with (
        tempfile.TemporaryDirectory(prefix="kdgat-prefect-", ignore_cleanup_errors=True) as folder,
        reserved_port() as serving,
    ):
        local, auth_string = EmbeddedDatabase(Path(folder), database), new_auth_string()
        local.fetch()
        words = (os.getpid(), serving.fileno(), folder, database, log)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "flows.embedded.process", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{local.path}",
                    "PREFECT_SERVER_UI_ENABLED": "false",
                    SERVER_AUTH_VARIABLE: auth_string,
                },
                pass_fds=[serving.fileno()],
                start_new_session=True,  # Ctrl-C is for the flow, which then still has somebody to report to
            )
        host, port = serving.getsockname()
        serving.close()
        try:
            _wait_until_up(process, f"http://{host}:{port}/api", auth_string, log)
            yield f"http://{host}:{port}/api", auth_string
        finally:
            _stop(process)
            local.keep()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Add to the environment of all threads, and take it back; a settings context of Prefect reaches one thread."""
    from prefect.context import refresh_global_settings_context

    previous = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    refresh_global_settings_context()
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        refresh_global_settings_context()


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


def _wait_until_up(process: subprocess.Popen[bytes], url: str, auth_string: str, log: Path) -> None:
    limit_s = float(os.environ.get(START_TIMEOUT_VARIABLE, START_TIMEOUT_S))
    wait_until(lambda: process.poll() is not None or answers(url, auth_string), limit_s)
    if process.poll() is not None or not answers(url, auth_string):
        printed = last_lines(log).strip().splitlines()
        raise UserError(
            f"the embedded Prefect API did not answer within {limit_s:g} s: give it more time by "
            f"{START_TIMEOUT_VARIABLE}=600, or start a server with `prefect server start` and set {API_URL_VARIABLE}="
            f"http://127.0.0.1:4200/api; its log {log} ends with: {printed[-1] if printed else '(nothing)'}"
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
