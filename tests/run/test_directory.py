"""An output directory is trained into by one command at a time, on any filesystem."""

import errno
import fcntl
import multiprocessing
import os
import pwd
import socket
import threading
from multiprocessing.synchronize import Event
from pathlib import Path
from unittest import mock

import pytest

from kdgat.run import OutputDirectory, RunError, StageRecord, StageState
from kdgat.run.directory import RunIndex


def hold(path: Path, held: Event, release: Event) -> None:
    with OutputDirectory(path).lock():
        held.set()
        release.wait(60)


@pytest.mark.processes
def test_a_second_command_is_told_who_trains_and_on_which_machine(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    owner = context.Process(target=hold, args=(tmp_path, held, release))
    owner.start()
    try:
        assert held.wait(60)
        words = f"in use by pid {owner.pid} on {socket.gethostname()}: .*another --out"
        with pytest.raises(RunError, match=words), OutputDirectory(tmp_path).lock():
            pass
    finally:
        owner.kill()
        owner.join()
    with OutputDirectory(tmp_path).lock():  # what the killed one left is in nobody's way
        pass


def test_to_look_whether_a_directory_is_free_makes_nothing_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path / "new")
    output.require_free()
    assert not output.path.exists()
    with output.lock(), pytest.raises(RunError, match=f"in use by pid {os.getpid()} on .*another --out"):
        output.require_free()
    before = sorted(output.path.rglob("*"))
    output.require_free()
    assert sorted(output.path.rglob("*")) == before
    with output.lock():
        pass


def test_who_only_looks_is_waited_for(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    output.lock_path.touch()
    with output.lock_path.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        later = threading.Timer(0.05, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        later.start()
        with output.lock():
            later.join()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP])
def test_a_filesystem_without_locks_is_trained_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with OutputDirectory(tmp_path).lock():
        pass


def test_a_directory_that_cannot_be_written_to_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "run.lock").mkdir()  # permissions do not stop root
    with pytest.raises(RunError, match=r"cannot be written to.*another --out"), OutputDirectory(tmp_path).lock():
        pass


def test_a_run_of_a_newer_kdgat_is_left_alone(tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    output.index_path.write_text('{"schema_version": 2}')
    for refused in (output.require_free, lambda: output.lock().__enter__()):
        with pytest.raises(
            RunError, match=r"run\.json was written by a newer kdgat .*: update kdgat; or choose another"
        ):
            refused()
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    output.index_path.write_text("{")
    output.require_free()  # what is damaged is made anew


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize("name", ["nobody", "54321"])
def test_a_run_of_another_user_is_left_to_them(tmp_path: Path, name: str) -> None:
    output = OutputDirectory(tmp_path)
    output.write_index(RunIndex(family="can", config={}, stages=[]))
    output.slurm_path.mkdir()
    output.require_free()
    os.chown(output.index_path, pwd.getpwnam(name).pw_uid if name == "nobody" else int(name), -1)
    before = sorted(tmp_path.iterdir())
    with (
        pytest.raises(RunError, match=r"who alone goes on with it"),
        mock.patch("tempfile.TemporaryFile", side_effect=PermissionError),
    ):
        output.require_allowed()
    with pytest.raises(RunError, match=rf"is of user {name}, who alone goes on with it.*another --out"):
        output.require_free()
    with pytest.raises(RunError, match=f"is of user {name}"), output.lock():
        pass
    assert sorted(tmp_path.iterdir()) == before
    output.slurm_path.rmdir()
    output.require_free()  # root in a container goes on with what has no jobs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is damaged"),
        ('{"family": "can", "config": {}, "stages": 3}', "is not what this kdgat writes .stages=3: write a list"),
    ],
)
def test_a_damaged_index_is_named_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    output = OutputDirectory(tmp_path)
    output.index_path.write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=rf"run.json {words}.* run the training command again$") as caught:
        output.read_index()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("BAD_INPUT: x.csv is empty", "x.csv is empty"),
        ("x.csv: is empty\nand more", "x.csv: is empty"),
        ("ERROR: Traceback\n  File a.py\nnumpy.x.AxisError: no axis 3", "no axis 3 (AxisError)"),
        ("HOST_OOM: exit status 1 without an outcome", "exit status 1 without an outcome"),
        ("", ""),
    ],
)
def test_a_failure_is_told_without_names_of_classes_in_front(message: str, reason: str) -> None:
    record = StageRecord(name="a", stage="a", scale="large", seed=0, state=StageState.FAILED, message=message)
    assert record.reason == reason


def test_a_checkpoint_of_another_program_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").write_bytes(b"PK")
    with pytest.raises(RunError, match=r"last\.ckpt holds Python objects of another program.*give the directory"):
        OutputDirectory(tmp_path / "last.ckpt").read_index()
