import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kdgat.run import OutputDirectory, StageState
from tests.can.report.conftest import make_output
from tests.support.command_line import Answer, started_kdgat
from tests.support.waiting import wait_until
from tests.support.web import ask


def set_state(run: Path, state: StageState) -> None:
    output = OutputDirectory(run)
    index = output.read_index()
    index.stages[-1].state = state
    output.write_index(index)


def test_a_port_without_serving_is_refused(tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    answer = kdgat("report", tmp_path, "--port", 8765, status=2)
    assert "--serve" in answer.stderr


@pytest.mark.processes
def test_a_report_is_served_until_ctrl_c_and_says_how_it_is_reached(tmp_path: Path) -> None:
    run, log = make_output(tmp_path / "run", num_windows=200, seeds=(0,)), tmp_path / "log"
    with started_kdgat(log, "report", str(run), "--serve") as process:
        wait_until(lambda: "Ctrl-C" in log.read_text(), "an address", log=log.read_text)
        printed = log.read_text()
        url = printed.splitlines()[0]
        port = url.split(":")[2].partition("/")[0]
        assert f"ssh -L {port}:127.0.0.1:{port} " in printed
        assert f":{run}/report.html ." in printed
        assert ask(url) == (200, (run / "report.html").read_text(encoding="utf-8"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that has the address which the browser was to open."""
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    return opened


@pytest.mark.processes
@pytest.mark.parametrize("has_results", [False, True])
def test_a_run_that_goes_on_is_opened_in_the_browser_from_a_server_that_follows_it(
    tmp_path: Path, opened: Path, has_results: bool
) -> None:
    run, log = make_output(tmp_path / "run", num_windows=200, seeds=(0,)), tmp_path / "log"
    set_state(run, StageState.RUNNING)
    if not has_results:
        (run / "results.json").unlink()
    with started_kdgat(log, "report", str(run), "--open") as process:
        wait_until(lambda: opened.exists() and opened.read_text().endswith("\n"), "a page", log=log.read_text)
        assert opened.read_text() == log.read_text().splitlines()[0] + "\n"
        assert ask(opened.read_text().strip())[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.processes
def test_a_run_that_failed_without_results_is_opened_as_a_file_and_not_served(
    tmp_path: Path, opened: Path, kdgat: Callable[..., Answer]
) -> None:
    run = make_output(tmp_path / "run", num_windows=200, seeds=(0,))
    set_state(run, StageState.FAILED)
    (run / "results.json").unlink()
    assert kdgat("report", run, "--open").status == 0
    assert opened.read_text().strip() == (run / "report.html").as_uri()
