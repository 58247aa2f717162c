"""What `kdgat doctor` says of filesystems that differ from a local one, which fake system calls stand for."""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kdgat.cluster.filesystem import Check, check_filesystem, check_folder

real_flock, real_fsync = fcntl.flock, os.fsync
Flock = Callable[[object, int], None]


def checks(folder: Path) -> dict[str, Check]:
    return {check.name: check for check in check_folder(folder, "filesystem")}


def nfs4(file: object, kind: int) -> None:
    """As Linux' NFSv4 client: a kind of lock only on what is open for it."""
    mode = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE  # type: ignore[call-overload]
    refused = {os.O_WRONLY: fcntl.LOCK_SH, os.O_RDONLY: fcntl.LOCK_EX}.get(mode)
    if kind & ~fcntl.LOCK_NB == refused:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    real_flock(file, kind)  # type: ignore[arg-type]


def answering(number: int, of: int = fcntl.LOCK_EX | fcntl.LOCK_SH) -> Flock:
    def flock(file: object, kind: int) -> None:
        if kind & of:
            raise OSError(number, os.strerror(number))
        real_flock(file, kind)  # type: ignore[arg-type]

    return flock


def test_a_local_filesystem_does_all_that_a_run_needs_and_nothing_is_left(tmp_path: Path) -> None:
    found = list(check_filesystem(tmp_path / "runs" / "first"))
    assert [check for check in found if check.state != "good"] == []
    assert found[0].name == f"filesystem of {tmp_path}"
    assert list(tmp_path.iterdir()) == []


def test_both_kinds_of_lock_are_asked_as_nfs4_grants_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", nfs4)
    assert checks(tmp_path)["locks"].state == "good"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_without_locks_it_says_what_tells_two_commands_apart(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", answering(number))
    found = checks(tmp_path)["locks"]
    assert (found.state, found.found) == ("warning", "the filesystem has none")
    assert "by their notes alone" in found.fix


def test_a_lock_that_is_granted_twice_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, kind: None)
    found = checks(tmp_path)["locks"]
    assert found.state == "warning"
    assert "granted a second time" in found.found


def test_a_shared_lock_that_is_refused_beside_an_exclusive_one_is_wrong_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", answering(errno.EBADF, of=fcntl.LOCK_SH))
    found = checks(tmp_path)["locks"]
    assert found.state == "wrong"
    assert "exclusive: busy and shared: EBADF" in found.found


def test_a_folder_that_cannot_be_synced_is_a_warning_and_a_file_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, kind: Callable[[int], bool]) -> None:
        if kind(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", lambda descriptor: refuse(descriptor, stat.S_ISDIR))
    found = checks(tmp_path)
    assert found["fsync"].state == "warning"
    assert "EINVAL" in found["fsync"].found
    assert found["filesystem"].state == "good"
    (tmp_path / "second").mkdir()
    monkeypatch.setattr(os, "fsync", lambda descriptor: refuse(descriptor, stat.S_ISREG))
    assert checks(tmp_path / "second")["fsync"].state == "wrong"


@pytest.mark.parametrize(("seconds", "words"), [(3 * 3600.0, "3 h 0 min behind"), (-3 * 3600.0, "3 h 0 min ahead of")])
def test_a_file_server_whose_clock_is_hours_off_is_told(
    seconds: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + seconds)
    found = checks(tmp_path)["clock of files"]
    assert found.state == "warning"
    assert words in found.found


def test_a_file_that_can_be_made_twice_and_one_that_keeps_its_content_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, replaced = Path.open, Path.replace

    def open_any(path: Path, mode: str = "r") -> object:
        return opened(path, mode.replace("x", "w"))

    def replace_but_new(path: Path, target: Path) -> object:
        return path if path.name == "new" else replaced(path, target)

    monkeypatch.setattr(Path, "open", open_any)
    monkeypatch.setattr(Path, "replace", replace_but_new)
    found = checks(tmp_path)
    assert (found["exclusive creation"].state, found["rename"].state) == ("wrong", "wrong")


def test_what_the_system_refuses_is_wrong_and_the_next_check_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(path: Path, target: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "replace", stale)
    found = checks(tmp_path)
    assert found["rename"].found == "Stale file handle (ESTALE)"
    assert found["fsync"].state == "good"
