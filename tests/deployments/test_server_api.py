"""What a server is told, and by whom it is asked; with real servers: test_following.py."""

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.deployment.installation import Installation
from flows.deployment.server_api import ServerAddress, ServerApi, UnreachableError, find_server


class Recorder(http.server.HTTPServer):
    """Answer everything, and keep the strings by which somebody was to be let in."""

    def __init__(self) -> None:
        self.told: list[str | None] = []
        told = self.told

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told.append(self.headers["Authorization"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_whoever_else_listens_at_the_address_of_the_server_is_not_told_its_string(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after `. installation.env`: where the server is down, nobody knows the home of what listens there.
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{recorder.server_port}/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "us:secret")
    api = ServerApi(find_server())
    assert api.address.home is None
    api.ask("GET", "/admin/version")
    assert recorder.told == ["Basic dXM6c2VjcmV0"]
    monkeypatch.setattr(os, "getuid", lambda: 65_534)  # for whom this process is somebody else
    with pytest.raises(UnreachableError, match="no process of yours listens there"):
        api.ask("GET", "/admin/version")
    here = Installation.find({"KDGAT_HOME": str(tmp_path)})
    of_home = ServerAddress(api.address.url.replace("127.0.0.1", "localhost"), "us:secret", here.home)
    with pytest.raises(UnreachableError, match=f"KDGAT_HOME={tmp_path} make deploy"):
        ServerApi(of_home).ask("GET", "/admin/version")
    assert len(recorder.told) == 1
