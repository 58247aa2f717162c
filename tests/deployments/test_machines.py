"""An installation whose home several machines share: it runs on one of them, and the others leave it alone."""

import os
import socket
from pathlib import Path

import pytest

from flows.deployment.__main__ import EXIT_NOT_RUNNING, main
from flows.deployment.installation import (
    DATABASE,
    LOCAL,
    Installation,
    default_database,
    filesystem_of,
    make_own_folder,
    own_folder,
)
from flows.deployment.lifecycle import TAKE_OVER_VARIABLE
from flows.deployment.service import Service, end, other_machine, this_machine
from kdgat.base import UserError, write_json_atomically


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(TAKE_OVER_VARIABLE, raising=False)
    Installation.find().make_home()
    return tmp_path / "home"


def noted(home: Path, name: str = "server", **machine: str) -> Path:
    """Leave the note of a program as the machine does on which it was started."""
    path = Service(home, name).note_path
    write_json_atomically(path, {"command": ["prefect", name], "port": 4200, **machine})
    return path


@pytest.mark.parametrize("word", ["up", "down", "update"])
@pytest.mark.parametrize("name", ["server", "worker", "update"])
def test_what_runs_on_another_machine_is_left_alone_and_its_name_is_said(
    home: Path, word: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    noted(home, name, host="login1", boot_id="a")
    before = {path: path.read_bytes() for path in home.iterdir()}
    assert main([word]) == 1
    said = capsys.readouterr().err
    for part in ("runs on login1", "`make undeploy` there", f"{TAKE_OVER_VARIABLE}=login1 make deploy"):
        assert part in said
    assert {path: path.read_bytes() for path in home.iterdir()} == before


def test_status_says_where_it_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noted(home, host="login1", boot_id="a")
    assert main(["status"]) == EXIT_NOT_RUNNING
    assert "on login1: ask there" in capsys.readouterr().out


def test_this_machine_started_again_is_no_other_one(home: Path) -> None:
    noted(home, **{**this_machine(), "boot_id": "before"})
    assert other_machine(home) == ""
    assert main(["down"]) == 0


def test_a_note_of_an_earlier_version_is_of_this_machine_unless_others_see_it_too(home: Path) -> None:
    """No test has a network filesystem: that of the home stands for one."""
    noted(home)
    assert other_machine(home) == ""
    assert other_machine(home, frozenset({filesystem_of(home)})) == "unknown"


def test_what_is_seen_runs_here_whatever_this_machine_was_called(home: Path) -> None:
    service = Service(home, "server")
    process = service.start(["sleep", "600"], os.environ, home, host="dhcp-7")
    try:
        assert service.note()["boot_id"] == this_machine()["boot_id"]
        assert other_machine(home) == ""
    finally:
        end(process, 0.1)
    assert other_machine(home) == "dhcp-7"


def test_what_is_started_notes_its_machine(home: Path) -> None:
    service = Service(home, "server")
    end(service.start(["true"], os.environ, home, port=1))
    assert service.note()["host"] == socket.gethostname()


def test_a_machine_that_is_gone_is_taken_over_by_its_name_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [noted(home, name, host="login1", boot_id="a") for name in ("server", "worker", "update")]
    monkeypatch.setenv(TAKE_OVER_VARIABLE, "login2")
    assert main(["down"]) == 1
    assert all(path.is_file() for path in paths)
    monkeypatch.setenv(TAKE_OVER_VARIABLE, "login1")
    assert main(["down"]) == 0
    assert not any(path.is_file() for path in paths)


def test_the_database_of_a_home_on_a_network_filesystem_lies_on_a_disk_of_the_machine(tmp_path: Path) -> None:
    """No test has such a filesystem: that of the home stands for one, or `proc`."""
    assert default_database(tmp_path) == tmp_path / "prefect" / DATABASE
    assert default_database(Path("/proc/self"), frozenset({"proc"})) == own_folder(Path("/proc/self")) / DATABASE
    everywhere = frozenset({"proc", filesystem_of(LOCAL)})
    assert default_database(Path("/proc/self"), everywhere) == Path("/proc/self/prefect", DATABASE)


def test_a_database_that_is_not_in_the_home_is_told_of(tmp_path: Path) -> None:
    home = tmp_path / "home"
    moved = f"sqlite+aiosqlite:///{own_folder(home) / DATABASE}"
    here = Installation.find({"KDGAT_HOME": str(home), "PREFECT_SERVER_DATABASE_CONNECTION_URL": moved})
    assert str(own_folder(home) / DATABASE) in here.describe_moved_database()
    assert Installation.find({"KDGAT_HOME": str(home)}).describe_moved_database() == ""


def test_a_folder_that_somebody_else_made_or_opened_is_refused(tmp_path: Path) -> None:
    make_own_folder(tmp_path / "own")
    make_own_folder(tmp_path / "own")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for name in ("link", "open"):
        with pytest.raises(UserError, match=r"not a folder for you alone.*PREFECT_SERVER_DATABASE_CONNECTION_URL"):
            make_own_folder(tmp_path / name)
