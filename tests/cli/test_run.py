"""`kdgat run` where no server is needed; with a real installation: tests/deployments/test_deploy.py."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.deployment.installation import Installation
from flows.deployment.server_api import ServerAddress, ServerApi
from flows.deployment.submission import Deployment, require_free
from kdgat.can.nightly.directory import NightlyDirectory
from kdgat.cli.run import _report
from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState
from kdgat.run.end import RunEnd
from tests.support.command_line import Answer

TRAINING = Deployment("can-ids/a", {"entrypoint": "flows/can_ids.py:can_ids"})
NIGHT = Deployment("nightly/a", {"entrypoint": "flows/nightly.py:nightly"})


def test_a_server_that_does_not_run_is_named_with_the_command_that_starts_it(
    kdgat: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # on which nobody listens after this
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path))
    Installation.find({"KDGAT_HOME": str(tmp_path), "KDGAT_PORT": str(port)}).write()
    error = kdgat("run", "can-ids/synthetic", status=1).stderr
    assert error.startswith(f"error: the server does not answer at http://127.0.0.1:{port}/api")
    assert f"`KDGAT_HOME={tmp_path} make deploy` starts it" in error
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/other")
    error = kdgat("run", "can-ids/synthetic", status=1).stderr
    assert f"http://127.0.0.1:{port}/other" in error
    assert "check PREFECT_API_URL" in error


def test_a_run_that_is_only_followed_takes_no_parameters(kdgat: Callable[..., Answer]) -> None:
    words = ("run", "can-ids/a", "--follow", "-O", "seeds=[1]")
    assert "--follow and --cancel start no run" in kdgat(*words, status=1).stderr
    assert "name a deployment" in kdgat("run", "--cancel", status=1).stderr


@pytest.mark.parametrize("deployment", [TRAINING, NIGHT])
def test_a_run_whose_output_directory_a_command_uses_is_refused_before_it_is_made(
    tmp_path: Path, deployment: Deployment
) -> None:
    rows = {**deployment.row, "parameters": {"out": str(tmp_path)}}
    taken = NightlyDirectory(tmp_path) if deployment.is_night else OutputDirectory(tmp_path)
    wanted = Deployment(deployment.name, rows)
    api = ServerApi(ServerAddress("http://127.0.0.1:1/api", "", None))  # nobody is asked
    require_free(api, wanted, {})
    with taken.lock(), pytest.raises(ValueError, match=f"{tmp_path} is in use by pid {os.getpid()} on"):
        require_free(api, wanted, {})


@pytest.fixture
def output(tmp_path: Path) -> OutputDirectory:
    """Return a run one of whose stages has failed."""
    record = StageRecord(name="normal-large-seed0", stage="normal", scale="large", seed=0, state=StageState.FAILED)
    record.message = "the loss is not finite"
    found = OutputDirectory(tmp_path)
    found.write_index(RunIndex(family="can", config={}, stages=[record]))
    return found


def test_a_run_that_failed_ends_with_the_stage_that_did_and_an_earlier_one_is_not_blamed(
    output: OutputDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    end, began = RunEnd("failed", "2 of 3 stages failed"), output.index_path.stat().st_mtime
    assert _report(TRAINING, output.path, end, began, quiet=False) == 1
    assert capsys.readouterr().err == "error: normal-large-seed0: the loss is not finite\n"
    os.utime(output.index_path, (began - 60, began - 60))
    assert _report(TRAINING, output.path, RunEnd("failed", "out is in use"), began, quiet=False) == 1
    assert capsys.readouterr().err == "error: out is in use\n"


def test_a_night_ends_with_its_sentence(output: OutputDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    began = output.index_path.stat().st_mtime
    output.report_path.write_text("<html>")
    promoted = "2 new; m-1 went into service: better by 0.01"
    assert _report(NIGHT, output.path, RunEnd("completed", promoted), began, quiet=False) == 0
    assert capsys.readouterr().out == f"{promoted}\nreport   {output.report_path}\n"
    assert _report(NIGHT, None, RunEnd("completed", "nothing new"), began, quiet=False) == 0
    assert capsys.readouterr().out == "nothing new\n"
    assert _report(NIGHT, None, RunEnd("stopped", "cancelled"), began, quiet=False) == 130
    assert capsys.readouterr().err == "cancelled; the same command goes on from there\n"
