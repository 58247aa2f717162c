"""Nights that do not come are said by whatever still runs: the status, a command on a terminal, a look by cron."""

import json
import os
import pty
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flows.deployment.__main__ import EXIT_NOT_RUNNING, main
from flows.deployment.installation import Installation
from flows.deployment.overdue import NOTE, find_overdue, read_nights

DAY_S = 86_400.0


def note(home: Path, out: Path, since_days: float = 30.0) -> None:
    home.mkdir(parents=True, exist_ok=True)
    night = {"out": str(out), "since": time.time() - since_days * DAY_S, "patience_s": 2 * DAY_S}
    (home / NOTE).write_text(json.dumps({"nightly/cars": night}))


def report(out: Path, name: str, days_ago: float) -> None:
    path = out / "reports" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.utime(path, (time.time() - days_ago * DAY_S,) * 2)


def test_a_night_is_overdue_two_days_after_the_last_one_or_after_it_was_deployed(tmp_path: Path) -> None:
    home, out = tmp_path / "home", tmp_path / "nights"
    assert find_overdue(home) == []
    note(home, out, since_days=1.0)
    assert find_overdue(home) == []
    note(home, out)
    assert "nightly/cars: no night has completed for 30 d 0 h" in find_overdue(home)[0]
    report(out, "1-nothing-new", 3.0)
    report(out, "2-refused", 0.1)  # it failed
    assert "for 3 d 0 h" in find_overdue(home)[0]
    report(out, "3-night-abc", 1.9)
    assert find_overdue(home) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"out": "x"}}'])
def test_a_note_that_cannot_be_read_ends_no_command(tmp_path: Path, text: str) -> None:
    (tmp_path / NOTE).write_text(text)
    assert read_nights(tmp_path) == {}
    assert find_overdue(tmp_path) == []


def test_cron_is_told_and_people_are_where_neither_server_nor_worker_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("KDGAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KDGAT_PORT", "4301")
    for proxy in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("KDGAT_NOTIFY", f"http://127.0.0.1:{server.server_port}/hook")
        assert main(["check"]) == 0  # no night is meant to come
        assert not told
        note(tmp_path / "home", tmp_path / "nights")
        assert main(["check"]) == EXIT_NOT_RUNNING
        server.shutdown()
    said = capsys.readouterr().out
    for words in ("no night has completed for 30 d 0 h", "does not answer: no night will come", "no worker runs"):
        assert words in said
        assert words in told[0]
    assert told[0].startswith("nights do not come\n")
    monkeypatch.setenv("KDGAT_NOTIFY", "slack-webhook/ops")  # a block of the server's
    assert main(["check"]) == EXIT_NOT_RUNNING
    assert "nobody was told" in capsys.readouterr().out

    Installation.find().make_home()
    assert main(["status"]) == EXIT_NOT_RUNNING
    assert "no night has completed for 30 d 0 h" in capsys.readouterr().out


@pytest.mark.processes
def test_a_command_on_a_terminal_says_it_and_a_script_hears_nothing(tmp_path: Path) -> None:
    note(tmp_path / ".kdgat", tmp_path / "nights")
    environment = {**os.environ, "HOME": str(tmp_path)}
    environment.pop("KDGAT_HOME", None)
    command = [sys.executable, "-c", "from kdgat.cli.main import main; main(['--version'])"]
    quiet = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert quiet.stderr == ""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment):
        os.close(theirs)
        said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "note: nightly/cars: no night has completed for 30 d 0 h" in said
