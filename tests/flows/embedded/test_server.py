import contextlib
import os
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.context import refresh_global_settings_context

from flows.deployment.installation import Installation
from flows.embedded.loopback import LOOPBACK, is_ours
from flows.embedded.server import API_URL_VARIABLE, CLIENT_AUTH_VARIABLE, START_TIMEOUT_VARIABLE, prefect_api
from kdgat.base import UserError
from kdgat.cluster.slurm import command_environment
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def no_configured_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv(API_URL_VARIABLE, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    yield
    monkeypatch.undo()
    refresh_global_settings_context()  # for the tests after these


def test_a_configured_server_is_used_and_none_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/api"
        monkeypatch.setenv(API_URL_VARIABLE, address)
        with prefect_api(tmp_path / "prefect.db", tmp_path / "server.log") as url:
            assert url == address
    assert not (tmp_path / "server.log").exists()


def test_a_configured_server_that_is_down_is_one_sentence_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv(API_URL_VARIABLE, f"http://{LOOPBACK}:{port}/api")
    with (
        pytest.raises(UserError, match=r"no Prefect server answers .*`unset PREFECT_API_URL`"),
        prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"),
    ):
        pytest.fail("it went on without a server")


def test_jobs_get_the_proxies_of_a_person_where_this_command_can_use_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "own.example")
    with socket.create_server((LOOPBACK, 0)) as listener:
        monkeypatch.setenv(API_URL_VARIABLE, f"http://{LOOPBACK}:{listener.getsockname()[1]}/api")
        with prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"):
            httpx.Client(verify=False).close()
            given = command_environment()
    assert given["all_proxy"] == "socks5://127.0.0.1:9"
    assert given["no_proxy"] == given["NO_PROXY"] == "own.example,127.0.0.1,::1,localhost"


def test_the_server_of_an_installation_is_told_its_string_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def auth_string(host: str, port: int) -> str | None:
        monkeypatch.setenv(API_URL_VARIABLE, f"http://{host}:{port}/api")
        with prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"):
            return os.environ.get(CLIENT_AUTH_VARIABLE)

    monkeypatch.delenv(CLIENT_AUTH_VARIABLE, raising=False)
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path / "home"))
    with socket.create_server((LOOPBACK, 0)) as ours, socket.create_server((LOOPBACK, 0)) as other:
        port = ours.getsockname()[1]
        assert auth_string(LOOPBACK, port) is None  # nothing is installed
        here = Installation.find({"KDGAT_HOME": str(tmp_path / "home"), "KDGAT_PORT": str(port)})
        here.write()
        assert auth_string(LOOPBACK, port) == auth_string("localhost", port) == here.auth_string
        assert auth_string(LOOPBACK, other.getsockname()[1]) is None
        assert auth_string("prefect.example", port) is None
        monkeypatch.setenv(CLIENT_AUTH_VARIABLE, "my:own")
        assert auth_string(LOOPBACK, port) == "my:own"
    monkeypatch.delenv(CLIENT_AUTH_VARIABLE)
    with pytest.raises(UserError, match="no Prefect server answers"):
        auth_string(LOOPBACK, port)  # nobody listens there now


@pytest.mark.processes
def test_a_server_that_does_not_come_up_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(START_TIMEOUT_VARIABLE, "0.2")
    with (
        pytest.raises(UserError, match=START_TIMEOUT_VARIABLE),
        prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"),
    ):
        pass


@pytest.mark.processes
def test_a_server_that_ends_is_told_from_one_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named it' >&2; echo and more; exit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (tmp_path / "prefect.db").write_text("of an earlier command")
    with (
        pytest.raises(
            UserError, match=r"ended with status 3; its log .*: ModuleNotFoundError: No module named it"
        ) as error,
        prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"),
    ):
        pass
    assert START_TIMEOUT_VARIABLE not in str(error.value)
    assert (tmp_path / "prefect.db").read_text() == "of an earlier command", "it was not what made the server end"


def test_requests_to_this_machine_ask_no_proxy_and_those_to_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "here.example")
    with socket.create_server((LOOPBACK, 0)) as listener:
        for host, said in ((LOOPBACK, "here.example,127.0.0.1,::1,localhost"), ("prefect.example", "here.example")):
            monkeypatch.setenv(API_URL_VARIABLE, f"http://{host}:{listener.getsockname()[1]}/api")
            with prefect_api(tmp_path / "prefect.db", tmp_path / "server.log"):
                assert os.environ["no_proxy"] == said
    assert os.environ["no_proxy"] == "here.example"


@pytest.mark.prefect
@pytest.mark.parametrize(
    ("more", "database"),
    [
        ({}, b"no database at all"),
        (
            {
                "all_proxy": "socks5://127.0.0.1:9",
                "PREFECT_CLIENT_CUSTOM_HEADERS": '{"a": "b"}',
                "PREFECT_SERVER_API_BASE_PATH": "/elsewhere",
                "PREFECT_API_SSL_CERT_FILE": "/absent",
                "PREFECT_RESULTS_DEFAULT_STORAGE_BLOCK": "s3-bucket/absent",
                "PREFECT_PROFILES_PATH": "/absent",
            },
            b"",
        ),
    ],
)
def test_what_is_set_for_others_and_a_damaged_database_end_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], database: bytes
) -> None:
    """A proxy of the machine, settings of other servers, files of the working folder."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "prefect.db").write_bytes(database)
    (tmp_path / "queue.py").write_text("raise SystemExit('code of the working folder')")
    (tmp_path / ".env").write_text("PREFECT_SERVER_API_BASE_PATH=/elsewhere\n")
    monkeypatch.chdir(tmp_path)
    with socket.create_server((LOOPBACK, 0)) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy"):
            monkeypatch.setenv(name, f"http://{LOOPBACK}:{proxy.getsockname()[1]}")
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        server = Served(tmp_path / "a").wait_until_up()
        server.process.communicate("")
        proxy.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            proxy.accept()
    assert server.flow_names() == {"told"}
    aside = tmp_path / "a" / "prefect-unreadable.db"
    assert (aside.read_bytes() if aside.exists() else b"") == database


@pytest.mark.prefect
def test_two_servers_at_once_serve_their_commands_alone_and_keep_what_they_held(tmp_path: Path) -> None:
    served = [Served(tmp_path / name) for name in ("a", "b")]
    try:
        (first, second) = [server.wait_until_up() for server in served]
        assert first.url != second.url
        for server, other in ((first, second), (second, first)):
            assert server.url.startswith("http://127.0.0.1:")
            assert server.status(server.auth_string) == httpx.codes.OK
            for stranger in ("", other.auth_string):
                assert server.status(stranger) == httpx.codes.UNAUTHORIZED
            # Neither a command line nor a log has it; the database lies on this machine's own disk.
            secret = server.auth_string.partition(":")[2]
            assert not any(secret in command for command in commands())
            assert (folder := server.local_folder()).parent == tmp_path / "local"
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert not (server.folder / "prefect.db").exists()
    finally:
        for server in served:
            server.process.communicate("")
    for server in (first, second):
        assert not is_ours(server.port)
        assert server.flow_names() == {"told"}
        assert server.auth_string.partition(":")[2] not in (server.folder / "server.log").read_text()
    assert list((tmp_path / "local").iterdir()) == []


@pytest.mark.prefect
def test_a_killed_process_takes_its_server_along_which_keeps_what_it_held(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / "a" / "prefect.db")) as earlier:
        earlier.execute("PRAGMA journal_mode = WAL")  # of a version that used the file where it lies
        earlier.execute("create table of_earlier (a integer)")
        server = Served(tmp_path / "a").wait_until_up()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.communicate()
    wait_until(lambda: not is_ours(server.port), "the end of the server", timeout_s=10.0)
    wait_until(lambda: not list((tmp_path / "local").iterdir()), "what it leaves")
    assert server.flow_names() == {"told"}
    with contextlib.closing(sqlite3.connect(tmp_path / "a" / "prefect.db")) as kept:
        assert list(kept.execute("select * from of_earlier")) == []
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["prefect.db", "server.log"]


class Served:
    """A process with an embedded server, of which its own flow `told` is known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder.parent / "local").mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVE, str(folder)],
            env={**os.environ, "TMPDIR": str(folder.parent / "local")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_up(self) -> "Served":
        assert self.process.stdout is not None
        self.url, self.auth_string = self.process.stdout.readline().split()
        self.port = int(self.url.removesuffix("/api").rpartition(":")[2])
        return self

    def status(self, auth_string: str) -> int:
        user, _, password = auth_string.partition(":")
        with httpx.Client(trust_env=False, auth=(user, password) if user else None) as client:
            return client.post(f"{self.url}/flow_runs/filter", json={}).status_code

    def local_folder(self) -> Path:
        mine, module = str(self.process.pid), "flows.embedded.process"
        (words,) = [words for words in commands() if mine in words and module in words]
        return Path(words[words.index("flows.embedded.process") + 3])

    def flow_names(self) -> set[str]:
        with contextlib.closing(sqlite3.connect(f"file:{self.folder}/prefect.db?mode=ro", uri=True)) as kept:
            return {name for (name,) in kept.execute("select name from flow")}


def commands() -> list[list[str]]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace").split("\0"))
    return found


SERVE = f"""
import os, sys
from pathlib import Path
from prefect.client.orchestration import get_client
from flows.embedded.server import prefect_api
folder = Path(sys.argv[1])
with prefect_api(folder / "prefect.db", folder / "server.log") as url:
    with get_client(sync_client=True) as client:
        client.create_flow_from_name("told")
    print(url, os.environ["{CLIENT_AUTH_VARIABLE}"], flush=True)
    sys.stdin.read()
assert "{CLIENT_AUTH_VARIABLE}" not in os.environ
"""
