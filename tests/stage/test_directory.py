"""A run directory has one spec, one writer at a time, and a finished one is never overwritten."""

import errno
import fcntl
import json
import multiprocessing
import os
import socket
from pathlib import Path

import pytest

from kdgat.stage import (
    Failed,
    FailureKind,
    Finished,
    Paused,
    RunDirectory,
    RunDirectoryError,
    StageBusyError,
    StageInput,
    StageSpec,
    owner,
)
from kdgat.stage.errors import OwnerLostError
from kdgat.stage.owner import own, read_owner

SPEC = StageSpec(family="can", stage="normal", seed=1, inputs={"train": StageInput(path="a", sha256="0" * 64)})


def test_spec_is_written_and_read(tmp_path):
    directory = RunDirectory(tmp_path / "deep" / "run").create(SPEC)
    assert directory.read_spec() == SPEC
    assert directory.read_outcome() is None


def test_directory_of_another_spec_is_refused_and_moved_inputs_are_taken_over(tmp_path):
    directory = RunDirectory(tmp_path).create(SPEC)
    with pytest.raises(RunDirectoryError, match="belongs to spec"):
        directory.create(SPEC.model_copy(update={"seed": 2}))
    moved = SPEC.model_copy(update={"inputs": {"train": StageInput(path="b", sha256="0" * 64)}})
    assert directory.create(moved).read_spec().inputs["train"].path == "b"


def test_missing_and_damaged_files_are_user_errors(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"no run directory: spec.json is missing"):
        RunDirectory(tmp_path).read_spec()
    with pytest.raises(RunDirectoryError, match="does not exist"), RunDirectory(tmp_path / "none").lock():
        pass
    (tmp_path / "spec.json").write_text("{")
    (tmp_path / "outcome.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"spec\.json is damaged"):
        RunDirectory(tmp_path).read_spec()
    with pytest.raises(RunDirectoryError, match=r"outcome\.json is not what this kdgat writes"):
        RunDirectory(tmp_path).read_outcome()


def test_directory_that_cannot_be_written_to_is_a_user_error(tmp_path):
    (tmp_path / "owner.lock").mkdir()  # permissions do not stop root
    with pytest.raises(RunDirectoryError, match="cannot be written to"), RunDirectory(tmp_path).lock():
        pass


def test_finished_outcome_is_never_overwritten(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.write_outcome(Failed(kind=FailureKind.ERROR, evidence="first attempt"))
    directory.write_outcome(Paused(checkpoint="", reason="second attempt"))
    directory.remove_outcome()
    assert directory.read_outcome() is None
    finished = Finished(metrics={"f1": 1.0})
    directory.write_outcome(finished)
    for overwrite in (lambda: directory.write_outcome(Finished()), directory.remove_outcome):
        with pytest.raises(RunDirectoryError, match="finished already"):
            overwrite()
    assert directory.read_outcome() == finished
    assert directory.is_finished()


def test_metrics_rows_append_replace_and_survive_a_cut_last_line(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.read_metrics() == []
    for epoch in range(3):
        directory.append_metrics({"epoch": epoch, "loss": 0.5})
    with directory.metrics_path.open("a") as file:
        file.write('{"epoch": 3, "lo')
    assert [row["epoch"] for row in directory.read_metrics()] == [0, 1, 2]
    directory.replace_metrics(directory.read_metrics()[:1])
    assert directory.metrics_path.read_text() == '{"epoch": 0, "loss": 0.5}\n'


def test_newest_checkpoint_of_a_fit_is_the_one_with_the_highest_number(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.newest_checkpoint() == ""
    early, late = directory.checkpoints_path / "early", directory.checkpoints_path / "late"
    # The clock of the node that wrote the last two is behind.
    for path, seconds in ((early, 90), (late, 100), (late, 50), (late, 60)):
        path.mkdir(parents=True, exist_ok=True)
        file = path / f"checkpoint-{len(list(path.iterdir())) + 1:08d}.pt"
        file.touch()
        os.utime(file, (seconds, seconds))
    (late / "checkpoint-00000009.pt.sha256").touch()
    assert directory.newest_checkpoint() == "checkpoints/late/checkpoint-00000003.pt"


def replace_checkpoints(path, ready, release):
    newest, number = None, 0
    while not release.is_set():
        number += 1
        written = path / f"checkpoint-{number:08d}.pt"
        written.touch()
        if newest is not None:
            newest.unlink()
        newest = written
        ready.set()


@pytest.mark.processes
def test_newest_checkpoint_is_found_beside_a_stage_that_removes_old_ones(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.checkpoints_path.mkdir()
    context = multiprocessing.get_context("spawn")
    ready, release = context.Event(), context.Event()
    writer = context.Process(target=replace_checkpoints, args=(directory.checkpoints_path, ready, release))
    writer.start()
    try:
        assert ready.wait(60)
        found = {directory.newest_checkpoint() for _ in range(3000)}
    finally:
        release.set()
        writer.join(30)
    assert len(found) > 1


def hold(path, held, release):
    with RunDirectory(path).lock():
        held.set()
        release.wait(30)


@pytest.mark.processes
def test_second_process_is_told_who_owns_the_directory(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    owner = context.Process(target=hold, args=(tmp_path, held, release))
    owner.start()
    assert held.wait(60)
    with (
        pytest.raises(StageBusyError, match=f"in use by pid {owner.pid} on {socket.gethostname()}"),
        RunDirectory(tmp_path).lock(),
    ):
        pass
    release.set()
    owner.join(30)
    with RunDirectory(tmp_path).lock() as directory:
        assert json.loads(directory.owner_path.read_text())["pid"] == os.getpid()
    assert not (tmp_path / "owner.json").exists()


@pytest.mark.processes
def test_directory_of_a_killed_owner_is_free_at_once_and_cleaned(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    owner = context.Process(target=hold, args=(tmp_path, held, release))
    owner.start()
    assert held.wait(60)
    owner.kill()
    owner.join()
    (tmp_path / ".progress.json.host.1.tmp").touch()
    assert (tmp_path / "owner.json").exists()
    with RunDirectory(tmp_path).lock() as directory:
        directory.check_owner()
        assert not list(tmp_path.glob(".*.tmp"))


def test_stage_that_starts_leaves_alone_what_its_watcher_may_be_writing(tmp_path):
    # Of the command that starts attempts, on the login node: `.NAME.HOST.PID.tmp` while it writes.
    theirs = {".spec.json.login.2.tmp", ".watcher.json.login.2.tmp"}
    for name in theirs:
        (tmp_path / name).touch()
    with RunDirectory(tmp_path).lock():
        assert {path.name for path in tmp_path.glob(".*.tmp")} == theirs


def test_owner_whose_token_was_replaced_writes_nothing_more(tmp_path):
    # What a second owner does where the filesystem knows no locks: it writes its own token.
    directory = RunDirectory(tmp_path)
    with directory.lock():
        directory.append_metrics({"epoch": 0})
        taken = json.dumps({"token": "other", "pid": 5, "host": "node2"})
        directory.owner_path.write_text(taken)
        for write in (
            lambda: directory.append_metrics({"epoch": 1}),
            lambda: directory.replace_metrics([]),
            lambda: directory.write_outcome(Finished()),
        ):
            with pytest.raises(OwnerLostError, match="pid 5 on node2"):
                write()
    assert directory.owner_path.read_text() == taken
    assert directory.read_metrics() == [{"epoch": 0}]
    assert directory.read_outcome() is None


def test_without_locks_the_token_of_a_successor_that_comes_just_now_is_not_removed(tmp_path, monkeypatch):
    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    directory, successor = RunDirectory(tmp_path), json.dumps({"token": "other", "pid": 5, "host": "node2"})
    read = owner.read_owner

    def read_and_be_succeeded(path):
        found = read(path)
        path.write_text(successor)
        return found

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with directory.lock():
        monkeypatch.setattr(owner, "read_owner", read_and_be_succeeded)
    monkeypatch.undo()
    assert directory.owner_path.exists()


def test_newest_part_stands_for_a_checkpoint_where_there_is_none(tmp_path):
    directory = RunDirectory(tmp_path)
    assert directory.newest_checkpoint() == ""
    for age, name in enumerate(("train/00000000.json", "validation/00000000.json", "train/00000032.json")):
        part = directory.parts_path / name
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text("{}")
        os.utime(part, ns=(0, age))
    (directory.parts_path / "train" / ".00000064.json.host.1.tmp").write_text("{")
    assert directory.newest_checkpoint() == "parts/train/00000032.json"
    directory.checkpoints_path.mkdir()
    (directory.checkpoints_path / "checkpoint-00000001.pt").write_bytes(b"")
    assert directory.newest_checkpoint() == "checkpoints/checkpoint-00000001.pt"


def test_rows_that_share_a_line_after_a_crash_are_kept_and_the_next_one_has_a_line_of_its_own(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.metrics_path.write_bytes(b'{"epoch": 1}{"fit": "a", "epoch": 2}\n{"epoch": 0, "l{"epoch": 3}')
    directory.append_metrics({"epoch": 4})
    assert [row["epoch"] for row in directory.read_metrics()] == [1, 2, 3, 4]


def test_a_damaged_line_of_the_metrics_is_left_out_and_named(tmp_path, caplog):
    directory = RunDirectory(tmp_path)
    for damage in (b"\x80\n", b"{\n", b"3\n", b"\0\0\n"):
        caplog.clear()
        directory.metrics_path.write_bytes(b'{"epoch": 1}\n' + damage + b'{"epoch": 2}\n')
        assert directory.read_metrics() == [{"epoch": 1}, {"epoch": 2}]
        assert "metrics.jsonl: line 2 is damaged and left out: " in caplog.text


def test_a_damaged_owner_file_is_nobodys_and_the_next_owner_writes_it_anew(tmp_path):
    for damage in (b"", b"\x80", b"[1", b"3"):
        (tmp_path / "owner.json").write_bytes(damage)
        assert read_owner(tmp_path / "owner.json") is None
        with own(tmp_path / "owner.lock", tmp_path / "owner.json") as owner:
            owner.check()


def test_who_wants_a_directory_that_somebody_owns_hears_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.stage.owner.LOOK_S", 3600.0)  # signals are not looked at while it waits
    paths = tmp_path / "lock", tmp_path / "owner.json"
    with own(*paths), pytest.raises(StageBusyError), own(*paths):
        pass


def test_a_path_that_no_file_can_have_is_no_run_directory():
    with pytest.raises(RunDirectoryError, match="is not a valid spec: embedded null byte"):
        RunDirectory("\0").read_spec()
