"""Who listens on a port of the loopback, with sockets and servers of this user, and of another where tests are root."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flows.embedded.loopback import LOOPBACK, LOOPBACK_6, answers, is_free, is_here, is_ours, may_be_told, reserved_port

pytestmark = pytest.mark.processes

NOBODY = 65_534
# Says yes to whatever it is asked, and writes down what it was told.
STRANGER = """
import encodings.idna, http.server, os, sys, time
os.setuid(int(sys.argv[1]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(2.0 * self.path.startswith("/slow"))
        print(self.headers["Authorization"], flush=True)
        self.send_response(200 if self.headers["Authorization"] != "Basic dXM6d3Jvbmc=" else 401)
        self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer((sys.argv[2], int(sys.argv[3])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
IPV6 = STRANGER.replace(
    "server = ", "import socket; http.server.HTTPServer.address_family = socket.AF_INET6; server = "
)


class Listener:
    def __init__(self, user: int, host: str = LOOPBACK, port: int = 0) -> None:
        command = [sys.executable, "-I", "-c", STRANGER, str(user), host, str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://{LOOPBACK}:{self.port}/api"

    def end(self) -> str:
        """Return what it was told."""
        self.process.kill()
        return self.process.communicate()[0]


@pytest.fixture
def ours() -> Iterator[Listener]:
    listener = Listener(os.getuid())
    yield listener
    listener.end()


def test_a_server_of_ours_is_one_that_lets_us_in(ours: Listener) -> None:
    assert is_ours(ours.port)
    assert not is_free(ours.port)
    assert answers(ours.url, "us:right")
    assert not answers(ours.url, "us:wrong")


def test_a_slow_server_answers_whoever_waits_for_it(ours: Listener) -> None:
    slow = ours.url.replace("/api", "/slow")
    assert not answers(slow, "us:right", timeout_s=0.2)
    assert answers(slow, "us:right")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can listen as somebody else")
def test_who_listens_on_another_address_does_not_matter(ours: Listener) -> None:
    stranger = Listener(NOBODY, "127.0.0.2", ours.port)
    try:
        assert answers(ours.url, "us:right")
    finally:
        stranger.end()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can listen as somebody else")
@pytest.mark.parametrize("host", [LOOPBACK, "0.0.0.0"])
def test_whoever_else_answers_is_not_ours_and_is_told_nothing(host: str) -> None:
    stranger = Listener(NOBODY, host)
    try:
        assert not is_free(stranger.port)
        assert not is_ours(stranger.port)
        assert not answers(stranger.url, "us:secret")
    finally:
        assert stranger.end() == ""


def test_a_reserved_port_is_its_holders_alone_and_nobody_listens_before_and_after_who_inherits_it() -> None:
    with reserved_port() as serving:
        host, port = serving.getsockname()
        assert not is_ours(port)
        with socket.socket() as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                stranger.bind((host, port))
        serving.listen()
        assert is_ours(port)
        serving.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
        assert not is_free(port)
    assert is_free(port)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can listen as somebody else")
def test_another_user_gets_a_reserved_port_in_no_way() -> None:
    program = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
with socket.socket() as stranger:
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    stranger.bind(("127.0.0.1", int(sys.argv[1])))
"""
    with reserved_port() as serving:
        command = [sys.executable, "-I", "-c", program, str(serving.getsockname()[1]), str(NOBODY)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Address already in use" in answer.stderr


@pytest.mark.parametrize(
    "host", [LOOPBACK, "localhost", "127.1", "127.8.8.8", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_a_secret_goes_to_no_address_of_this_machine_at_which_nobody_or_somebody_else_listens(host: str) -> None:
    assert is_here(host.strip("[]"))
    with reserved_port() as serving:
        assert not may_be_told(f"http://{host}:{serving.getsockname()[1]}/api")


def test_a_secret_goes_to_a_server_of_ours_and_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_here("server.example.org")
    assert may_be_told("https://server.example.org/api")
    with reserved_port() as serving:
        serving.listen()
        urls = [f"http://{host}:{serving.getsockname()[1]}/api" for host in (LOOPBACK, "localhost")]
        assert all(map(may_be_told, urls))
        monkeypatch.setattr(os, "getuid", lambda: NOBODY)
        assert not any(map(may_be_told, urls))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can listen as somebody else")
def test_localhost_is_not_ours_where_somebody_else_listens_at_one_of_its_addresses(ours: Listener) -> None:
    command = [sys.executable, "-I", "-c", IPV6, str(NOBODY), LOOPBACK_6, str(ours.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        if not stranger.stdout.readline():
            pytest.skip("this machine has no IPv6")
        try:
            assert may_be_told(ours.url)
            assert not may_be_told(ours.url.replace(LOOPBACK, "localhost"))
            assert not may_be_told(ours.url.replace(LOOPBACK, "[::1]"))
        finally:
            stranger.kill()
