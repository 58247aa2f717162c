import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import pytest

from kdgat.base import UserError
from kdgat.report.serving import ReportServer, copy_command, serve_command, tunnel_command
from tests.support.web import ask

PAGE = "<!doctype html><title>ä</title>"


@contextmanager
def served(server: ReportServer) -> Iterator[ReportServer]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    path = tmp_path / "report.html"
    path.write_text(PAGE, encoding="utf-8")
    (tmp_path / "results.json").write_text("{}")
    with served(ReportServer(path)) as server:
        yield server


def test_the_report_is_served_as_it_is_when_it_is_asked_for(server: ReportServer) -> None:
    assert ask(server.url) == (HTTPStatus.OK, PAGE)
    assert ask(server.url, "HEAD") == (HTTPStatus.OK, "")
    server.report.write_text("anew")
    assert ask(server.url) == (HTTPStatus.OK, "anew")


def test_the_report_of_a_run_that_goes_on_is_made_anew_for_each_request(tmp_path: Path) -> None:
    path, times = tmp_path / "report.html", iter((10, 10, 0))

    def renew(last_s: int) -> int:
        path.write_text(str(last_s))
        return next(times)

    with served(ReportServer(path, renew=renew, refresh_s=5)) as server:
        assert [ask(server.url)[1] for _ in range(3)] == ["5", "10", "10"]
        assert server.refresh_s == 0


@pytest.mark.parametrize("error", [UserError("half written"), OSError("no space"), KeyError("name")])
def test_what_keeps_a_report_from_being_made_anew_is_logged_once_and_the_last_page_is_served(
    server: ReportServer, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(last_s: int) -> int:
        raise error

    with served(ReportServer(server.report, renew=fail, refresh_s=10)) as failing:
        assert [ask(failing.url) for _ in range(3)] == [(HTTPStatus.OK, PAGE)] * 3
        assert failing.refresh_s == 10
    (record,) = caplog.records
    assert f"{type(error).__name__}: {error}" in record.getMessage()


def test_the_browser_asks_again_only_for_what_goes_on(server: ReportServer) -> None:
    for refresh_s in (10, 0):
        with (
            served(ReportServer(server.report, renew=lambda last_s: last_s, refresh_s=refresh_s)) as other,
            closing(HTTPConnection("127.0.0.1", other.server_port)) as connection,
        ):
            connection.request("GET", other.path)
            expected = f"10; url={other.path}" if refresh_s else None
            assert connection.getresponse().headers["Refresh"] == expected


def test_nothing_else_is_served_and_nothing_to_who_does_not_know_the_address(server: ReportServer) -> None:
    root, _, name = server.url.rpartition("/")
    host = root.rpartition("/")[0]
    others = ["/", "/report.html", f"/{'x' * 22}/report.html", "/results.json"]
    for url in [f"{root}/", f"{root}/results.json", f"{root}/../results.json", *(f"{host}{path}" for path in others)]:
        assert ask(url) == (HTTPStatus.NOT_FOUND, ""), url
    assert name == "report.html"


def test_two_servers_have_two_addresses(server: ReportServer) -> None:
    with ReportServer(server.report) as other:
        assert other.path != server.path


def test_a_report_that_was_removed_is_not_found(server: ReportServer) -> None:
    server.report.unlink()
    assert ask(server.url)[0] == HTTPStatus.NOT_FOUND


def test_a_port_that_is_taken_is_named_with_the_fix(server: ReportServer) -> None:
    with pytest.raises(UserError, match=f"--port {server.server_port}: .*leave --port out"):
        ReportServer(server.report, server.server_port)


def test_commands_for_another_machine_can_be_given_as_they_are(tmp_path: Path) -> None:
    assert "ssh -L 1234:127.0.0.1:1234 " in tunnel_command(1234)
    assert copy_command(tmp_path / "report.html").endswith(f":{tmp_path}/report.html .")
    assert f"kdgat report {tmp_path} --serve --port 8765" in serve_command(tmp_path)


@pytest.mark.parametrize("name", ["a run", "a; touch b", "it's", 'a "$HOME" b', "a*[1]?", "a\\ b", "~ä&"])
def test_paths_reach_the_other_machine_as_they_are(tmp_path: Path, name: str) -> None:
    run = tmp_path / name
    words = shlex.split(serve_command(run))
    assert words[:4] == ["ssh", "-t", "-L", "8765:127.0.0.1:8765"]
    there = " ".join(words[5:])  # as ssh joins what comes after the machine
    assert shlex.split(there)[1:] == ["report", str(run), "--serve", "--port", "8765"]
    _, source, here = shlex.split(copy_command(run / "report.html"))
    assert here == "."
    path = source.partition(":")[2]
    assert shlex.split(path) == [f"{run}/report.html"]  # scp before OpenSSH 9
    assert re.sub(r"\\(.)", r"\1", path) == f"{run}/report.html"  # as a pattern reads it
    assert not re.search(r"(?<!\\)[*?\[]", path.replace("\\\\", ""))


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("scp") is None, reason="needs scp of OpenSSH")
def test_scp_copies_a_report_from_a_path_with_characters_of_the_shell(tmp_path: Path) -> None:
    run = tmp_path / "there" / "a; echo 'it*' \"$HOME\""
    run.mkdir(parents=True)
    (run / "report.html").write_text(PAGE, encoding="utf-8")
    ssh = tmp_path / "ssh"  # does on this machine what the shell of the other one would do
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    command = copy_command(run / "report.html").replace("scp ", f"scp -O -S {ssh} ", 1)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == PAGE
