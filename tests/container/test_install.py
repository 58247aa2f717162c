"""The scripts that bring Apptainer and a base: once, again, and where they cannot work."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.container.apptainer import check_image, execute
from tests.container.built import CONTAINERS, require_apptainer, require_base
from tests.support.optional import lack

INSTALL = CONTAINERS / "install-apptainer.sh"
NOBODY = 65534


def run(*words: str | Path, path: str | None = None, uid: int | None = None) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, **({} if path is None else {"PATH": path})}
    identity = {} if uid is None else {"user": uid, "group": uid, "extra_groups": ()}
    return subprocess.run(["/bin/bash", *words], capture_output=True, text=True, env=environment, cwd="/", **identity)  # type: ignore[call-overload]


@pytest.fixture
def open_copy() -> Iterator[Path]:
    """A copy of the script that anybody can read."""
    if os.geteuid() != 0:
        lack("only root can become somebody else")
    copy = Path("/var/tmp") / f"kdgat-test-install-{os.getpid()}.sh"
    shutil.copy(INSTALL, copy)
    copy.chmod(0o755)
    yield copy
    copy.unlink()


@pytest.mark.image
def test_a_second_call_finds_everything_and_changes_nothing() -> None:
    program = require_apptainer().resolve()
    before = program.stat()
    answer = run(INSTALL)
    if os.geteuid() == 0 or answer.returncode == 0:
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.startswith("apptainer version ")
        assert (program.stat().st_mtime_ns, program.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lack("the script looks at the folder as root alone")
    (tmp_path / "mine").write_text("mine")
    answer = run(INSTALL, tmp_path)
    assert answer.returncode == 1
    assert answer.stderr == (
        f"install-apptainer: {tmp_path} is not empty and was not made by this script: name another directory\n"
    )
    assert (tmp_path / "mine").read_text() == "mine"


def test_somebody_else_than_root_is_told_so(open_copy: Path) -> None:
    answer = run(open_copy, "/var/tmp/kdgat-nowhere", uid=NOBODY)
    assert answer.returncode == 1
    assert answer.stderr == f"install-apptainer: needs root: sudo {open_copy} /var/tmp/kdgat-nowhere\n"


def test_another_system_than_debian_is_told_so(tmp_path: Path) -> None:
    for name in ("readlink", "id", "uname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    # What this machine has in /usr/sbin is searched, too; dpkg-query is not there.
    answer = run(INSTALL, tmp_path / "there", path=str(tmp_path))
    assert answer.returncode == 1
    assert answer.stderr.startswith("install-apptainer: this is no Debian (no dpkg)")


def test_a_base_needs_a_name_and_root(open_copy: Path) -> None:
    script = CONTAINERS / "make-base.sh"
    assert "usage: make-base.sh OUT.sif" in run(script).stderr
    shutil.copy(script, open_copy)
    assert "make-base: needs root" in run(open_copy, "/var/tmp/base.sif", uid=NOBODY).stderr


@pytest.mark.nightly
def test_apptainer_is_installed_into_any_folder_and_works_from_there(tiny: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        lack("installing needs root")
    folder = tmp_path / "somewhere else"
    answer = run(INSTALL, folder)
    assert answer.returncode == 0, answer.stderr
    program = folder / "usr" / "bin" / "apptainer"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KDGAT_APPTAINER", str(program))
        assert execute(tiny, ["sh", "-c", "echo inside"]).text == "inside\n"
    assert not list(tmp_path.glob("somewhere else.new*"))


@pytest.mark.image
def test_a_base_has_one_owner_no_device_and_names_no_mirror() -> None:
    base = check_image(require_base())
    said = execute(base, ["python3", "-c", "import venv, sys; print(sys.version_info[:2])"])
    assert "(3, 11)" in said.text
    assert execute(base, ["find", "/etc/apt", "-name", "*.list", "-o", "-name", "*.sources"]).text.strip() == ""
    owners = execute(base, ["find", "/etc", "/usr", "/var", "!", "-uid", "0"], options=["--contain"])
    assert owners.text.strip() == ""
    folders = ["/etc", "/usr", "/var", "/opt"]
    devices = execute(base, ["find", *folders, "-type", "b", "-o", "-type", "c"], options=["--contain"])
    assert devices.text.strip() == ""
