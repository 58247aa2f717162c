import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.context import refresh_global_settings_context

from flows.server import API_URL_VARIABLE, START_TIMEOUT_VARIABLE, ServerStartError, prefect_api
from tests.support.waiting import TIMEOUT_S, wait_until


def is_healthy(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(autouse=True)
def no_configured_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv(API_URL_VARIABLE, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    yield
    monkeypatch.undo()
    refresh_global_settings_context()  # for the tests after these


def test_a_configured_server_is_used_and_none_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_URL_VARIABLE, "http://127.0.0.1:9/api")
    with prefect_api(tmp_path / "prefect.db", tmp_path / "server.log") as url:
        assert url == "http://127.0.0.1:9/api"
    assert not (tmp_path / "server.log").exists()


def test_a_server_that_does_not_come_up_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_TIMEOUT_VARIABLE, "0.2")
    with (
        pytest.raises(ServerStartError, match=START_TIMEOUT_VARIABLE),
        prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"),
    ):
        pass


@pytest.mark.prefect
def test_two_servers_at_once_serve_on_the_loopback_and_end_with_their_contexts(tmp_path: Path) -> None:
    urls: dict[str, str] = {}
    leave = threading.Event()

    def serve(name: str) -> None:
        command = [sys.executable, "-c", SERVE, str(tmp_path / name)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            urls[name] = process.stdout.readline().strip()
            leave.wait(TIMEOUT_S)
            process.communicate("")

    threads = [threading.Thread(target=serve, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(urls) == 2, "two servers")
        assert len(set(urls.values())) == 2
        assert all(url.startswith("http://127.0.0.1:") and is_healthy(url) for url in urls.values())
    finally:
        leave.set()
        for thread in threads:
            thread.join()
    assert not any(is_healthy(url) for url in urls.values())


@pytest.mark.prefect
def test_a_killed_process_takes_its_server_along(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert is_healthy(url)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not is_healthy(url), "the end of the server", timeout_s=10.0)


SERVE = """
import sys
from pathlib import Path
from flows.server import prefect_api
folder = Path(sys.argv[1])
with prefect_api(folder / "prefect.db", folder / "server.log") as url:
    print(url, flush=True)
    sys.stdin.read()
"""
