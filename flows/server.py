"""An embedded Prefect API for one run: a child process on the loopback, with its own database, that ends with us.

Prefect's own ephemeral server shares this process's terminal and database file: Ctrl-C ends it before the flow has
reported its state, a killed flow leaves it behind, and two runs at once wait for each other's database lock.
"""

import contextlib
import importlib.util
import os
import random
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from flows.log_tail import last_lines
from kdgat.stage.parent import signal_on_parent_death
from kdgat.stage.polling import wait_until

API_URL_VARIABLE = "PREFECT_API_URL"
START_TIMEOUT_VARIABLE = "KDGAT_SERVER_START_TIMEOUT_S"
START_TIMEOUT_S = 180.0  # 3 to 30 s are usual; a busy two-core machine needs its time
STOP_TIMEOUT_S = 5.0
DRAIN_TIMEOUT_S = 20.0
PORTS = range(20_000, 32_000)  # below the ports that Linux hands out by itself
PORT_ATTEMPTS = 20
PORT_TAKEN_STATUS = 3  # uvicorn's exit status when it cannot bind
PRIVACY = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}


class ServerStartError(RuntimeError):
    """The embedded Prefect API did not come up; the text says what it wrote and what to do."""


@contextlib.contextmanager
def prefect_api(database: Path, log: Path) -> Iterator[str]:
    """Yield the URL of a Prefect API: the configured one, or an embedded server that stops with the context.

    Args:
        database: SQLite file of the embedded server; the history of earlier runs in it stays.
        log: file that takes what the embedded server prints.

    Raises:
        ServerStartError: if the embedded server does not answer in time.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in PRIVACY.items()})
    _refresh_prefect_settings()
    configured = configured_api_url()
    if configured is not None:
        yield configured
        return
    process, url = _start(database, log)
    previous = os.environ.get(API_URL_VARIABLE)
    os.environ[API_URL_VARIABLE] = url
    _refresh_prefect_settings()
    try:
        yield url
    finally:
        _drain_prefect_queues()
        if previous is None:
            del os.environ[API_URL_VARIABLE]
        else:
            os.environ[API_URL_VARIABLE] = previous
        _refresh_prefect_settings()
        _stop(process)


def configured_api_url() -> str | None:
    """Return the API that the environment or the active Prefect profile names."""
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def _refresh_prefect_settings() -> None:
    """Let every thread see the environment as it is now; a settings context would reach only this thread."""
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()


def _drain_prefect_queues() -> None:
    """Send the log lines and events that still wait in this process, as long as there is a server to take them."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=DRAIN_TIMEOUT_S)
    EventsWorker.drain_all(timeout=DRAIN_TIMEOUT_S)


def _start(database: Path, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    database.parent.mkdir(parents=True, exist_ok=True)
    limit_s = float(os.environ.get(START_TIMEOUT_VARIABLE, START_TIMEOUT_S))
    for _ in range(PORT_ATTEMPTS):
        port = random.choice(PORTS)
        if not is_free(port):
            continue
        process, url = _launch(port, database, log), f"http://127.0.0.1:{port}/api"
        try:
            if _comes_up(process, url, limit_s):
                return process, url
        except BaseException:
            _stop(process)
            raise
        if process.poll() != PORT_TAKEN_STATUS:
            _stop(process)
            break
    raise ServerStartError(
        f"the embedded Prefect API did not answer within {limit_s:g} s. Its log {log} ends with:\n{last_lines(log)}\n"
        f"Give it more time with {START_TIMEOUT_VARIABLE}=600, or start a server with `prefect server start` and set "
        f"{API_URL_VARIABLE}=http://127.0.0.1:4200/api"
    )


def _launch(port: int, database: Path, log: Path) -> subprocess.Popen[bytes]:
    prefect_spec = importlib.util.find_spec("prefect")
    assert prefect_spec is not None
    assert prefect_spec.origin is not None
    server = [
        *("-m", "uvicorn", "--app-dir", str(Path(prefect_spec.origin).parent.parent)),
        *("--factory", "prefect.server.api.server:create_app"),
        *("--host", "127.0.0.1", "--port", str(port), "--log-level", "error", "--lifespan", "on"),
    ]
    environment = {
        **os.environ,
        **PRIVACY,
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database.absolute()}",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT__SERVER_EPHEMERAL": "1",  # only the services that a single flow run needs
        "PREFECT__SERVER_FINAL": "1",
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.server", str(os.getpid()), *server],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the flow, which then still has somebody to report to
        )


def _comes_up(process: subprocess.Popen[bytes], url: str, limit_s: float) -> bool:
    return wait_until(lambda: process.poll() is not None or is_healthy(url), limit_s) and process.poll() is None


def is_healthy(url: str) -> bool:
    """Tell whether a Prefect API on the loopback answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy the environment names
    try:
        with opener.open(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:  # not listening yet, or too busy
        return False


def is_free(port: int) -> bool:
    """Tell whether nobody listens on a port of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _become_server(parent: int, arguments: list[str]) -> None:
    """Replace this process by the server, after asking the kernel to end it when the flow's process dies."""
    if not signal_on_parent_death(signal.SIGKILL, parent):
        sys.exit("the process that asked for this server is gone")
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    _become_server(int(sys.argv[1]), sys.argv[2:])
