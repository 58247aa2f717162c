"""What `make deploy` and its counterparts print where nothing has to be started for it."""

import os
import subprocess
from pathlib import Path

import pytest

from flows.deployment import lifecycle
from flows.deployment.__main__ import EXIT_NOT_RUNNING, main
from flows.deployment.installation import Installation


def find(tmp_path: Path) -> Installation:
    return Installation.find({"KDGAT_HOME": str(tmp_path / "home"), "KDGAT_PORT": "4300"})


def test_where_nothing_is_deployed_nothing_is_ended_and_that_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KDGAT_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    said = f"there is no {tmp_path}/.kdgat, and KDGAT_HOME is not set"
    assert main(["down"]) == 1
    assert capsys.readouterr().err.startswith(f"error: nothing was ended: {said}")
    assert main(["status"]) == EXIT_NOT_RUNNING
    assert capsys.readouterr().out.startswith(f"nothing is deployed: {said}")
    assert not (tmp_path / ".kdgat").exists()


def test_what_ran_and_runs_no_longer_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path / "home"))
    find(tmp_path).make_home()
    assert main(["down"]) == 0


def commands(here: Installation) -> list[str]:
    """Return the commands that are printed, without what is said beside them."""
    return [line.strip() for line in lifecycle.next_commands(here).splitlines() if line[:2] == "  " != line[1:3]]


def test_the_next_commands_work_in_a_new_shell_and_leave_prefect_nothing_to_ask(tmp_path: Path) -> None:
    here = find(tmp_path)
    here.write()
    setting_up = commands(here)[:2]
    script = "\n".join(
        [*setting_up, 'command -v kdgat; command -v prefect; printf "%s %s" "$PREFECT_API_URL" "$DO_NOT_TRACK"']
    )
    environment = {"PATH": os.defpath, "HOME": str(tmp_path)}
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, env=environment)
    *programs, settings = said.stdout.splitlines()
    assert [Path(program).name for program in programs if Path(program).is_file()] == ["kdgat", "prefect"]
    assert settings == f"{here.url} 1"


def test_a_dataset_is_suggested_that_is_there_and_one_is_made_where_there_is_none(tmp_path: Path) -> None:
    here = find(tmp_path)
    synth, run = [line.partition("#")[0].strip() for line in commands(here)[2:4]]
    assert synth == f"kdgat data synth --out {here.data_root} --dataset synthetic"
    assert run == "prefect deployment run can/synthetic --watch"
    (here.data_root / "hcrl_sa").mkdir(parents=True)
    assert not any("data synth" in line for line in commands(here))
    assert commands(here)[2].startswith("prefect deployment run can/hcrl-sa --watch ")
