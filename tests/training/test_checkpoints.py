"""Checkpoints: two are kept, damage is noticed, only plain data goes in."""

import errno
import logging
import resource
import shutil
import signal
from http import HTTPStatus

import numpy as np
import pytest
import torch

from kdgat.stage import RunDirectory
from kdgat.training.checkpoints import CheckpointError, Checkpoints


def test_round_trip_keeps_tensors_arrays_and_nested_plain_values(tmp_path):
    state = {
        "tensor": torch.arange(3.0),
        "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
        "nested": [{"pair": (1, 2.5), "text": "a"}, None, True],
        "number": np.float64(0.1),
        3: "integer keys stay integers",
    }
    Checkpoints(RunDirectory(tmp_path)).write(state)
    found = Checkpoints(RunDirectory(tmp_path)).load_newest()
    assert found is not None
    loaded = found[1]
    assert torch.equal(loaded["tensor"], state["tensor"])
    assert loaded["array"].dtype == np.uint32
    assert np.array_equal(loaded["array"], state["array"])
    assert loaded["nested"] == state["nested"]
    assert loaded["number"] == 0.1
    assert loaded[3] == state[3]


def test_last_two_are_kept_and_numbers_are_never_used_twice(tmp_path):
    for step in range(5):
        Checkpoints(RunDirectory(tmp_path)).write({"step": step})
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"checkpoint-0000000{n}.pt{suffix}" for n in (4, 5) for suffix in ("", ".sha256")]


def test_damaged_newest_falls_back_with_a_warning_and_the_next_write_goes_on(tmp_path, caplog):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    checkpoints.write({"step": 1})
    newest = checkpoints.write({"step": 2})
    newest.write_bytes(newest.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        found = checkpoints.load_newest()
    assert found is not None
    assert found[1] == {"step": 1}
    assert "checkpoint-00000002.pt is damaged (its sha256 differs)" in caplog.text
    checkpoints.write({"step": 3})
    again = checkpoints.load_newest()
    assert again is not None
    assert again[1] == {"step": 3}


def test_without_any_good_checkpoint_training_does_not_start_again_unasked(tmp_path):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    paths = [checkpoints.write({"step": step}) for step in (1, 2)]
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(b"")
    for _ in range(2):  # the next attempt says the same
        with pytest.raises(CheckpointError, match=r"00000002.pt: its sha256 differs; .*00000001.*remove that folder"):
            checkpoints.load_newest()
    paths[0].write_bytes(contents[0])
    found = checkpoints.load_newest()
    assert found is not None
    assert found[1] == {"step": 1}
    paths[0].unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint-00000002.damaged: set aside"):
        checkpoints.load_newest()
    shutil.rmtree(checkpoints.path)
    assert checkpoints.load_newest() is None


@pytest.mark.parametrize("hash_file", [None, b"", b"\n"])
def test_a_whole_checkpoint_that_was_copied_back_without_its_hash_is_taken_and_a_damaged_one_is_not(
    tmp_path, caplog, hash_file
):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    for step in (1, 2):
        path = checkpoints.write({"step": step, "weights": torch.full((100,), 0.5)})
        beside = path.with_name(f"{path.name}.sha256")
        beside.unlink() if hash_file is None else beside.write_bytes(hash_file)
    found = checkpoints.load_newest()
    assert found is not None
    assert found[1]["step"] == 2
    assert "checkpoint-00000002.pt has no sha256 file" in caplog.text
    content = path.read_bytes()
    weights = torch.full((100,), 0.5).numpy().tobytes()
    assert weights in content
    flipped = content.replace(weights, b"\1" + weights[1:])
    for damaged in (flipped, content[:-100], b"", b"{"):
        path.write_bytes(damaged)
        found = checkpoints.load_newest()
        assert found is not None
        assert found[1]["step"] == 1


def test_a_checkpoint_that_vanishes_while_it_is_read_is_passed_over(tmp_path, monkeypatch):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    checkpoints.write({"step": 1})
    newest = checkpoints.write({"step": 2})
    monkeypatch.setattr(checkpoints, "_numbers", lambda: [1, 2])  # as a listing that is older than the removal
    newest.unlink()
    found = checkpoints.load_newest()
    assert found is not None
    assert found[1] == {"step": 1}
    assert not list(checkpoints.path.glob("*.damaged"))


def test_a_checkpoint_that_cannot_be_read_just_now_is_not_called_damaged(tmp_path, monkeypatch):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    checkpoints.write({"step": 1})
    checkpoints.write({"step": 2})

    def stale(path):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    before = sorted(checkpoints.path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("kdgat.training.checkpoints.sha256_of_file", stale)
        with pytest.raises(OSError, match="Stale file handle"):
            checkpoints.load_newest()
    assert sorted(checkpoints.path.iterdir()) == before
    found = checkpoints.load_newest()
    assert found is not None
    assert found[1] == {"step": 2}


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    checkpoints.write({"step": 1})
    (checkpoints.path / ".checkpoint-00000002.pt.host.1.tmp").write_bytes(b"half")
    (checkpoints.path / "checkpoint-00000002.pt.sha256").write_text("0" * 64)
    checkpoints.write({"step": 2})
    assert {path.name for path in checkpoints.path.iterdir()} == {
        f"checkpoint-0000000{n}.pt{suffix}" for n in (1, 2) for suffix in ("", ".sha256")
    }
    found = checkpoints.load_newest()
    assert found is not None
    assert found[1] == {"step": 2}


def test_a_disk_that_is_full_keeps_the_last_checkpoint_and_no_piece_of_the_new_one(tmp_path):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    checkpoints.write({"step": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails as it does without space
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"too large: '.*checkpoint-00000002\.pt'"):
            checkpoints.write({"step": 2, "weights": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert sum(path.stat().st_size for path in checkpoints.path.glob(".*")) == 0
    found = checkpoints.load_newest()
    assert found is not None
    assert found[1] == {"step": 1}


def test_nothing_written_means_nothing_loaded(tmp_path):
    assert Checkpoints(RunDirectory(tmp_path)).load_newest() is None


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({1, 2}, "set"),
        (HTTPStatus.OK, "HTTPStatus"),
        (torch.__version__, "TorchVersion"),
        (np.array(["a"]), "array of <U1"),
        (object(), "object"),
    ],
)
def test_state_that_needs_pickle_is_refused_by_key(tmp_path, value, named):
    with pytest.raises(CheckpointError, match=rf"checkpoint\.source\.scores\[1\] is a .*{named}"):
        Checkpoints(RunDirectory(tmp_path)).write({"source": {"scores": [1, value]}})
    assert Checkpoints(RunDirectory(tmp_path)).load_newest() is None


def test_a_hash_that_is_no_text_is_damage_and_the_checkpoint_before_is_taken(tmp_path):
    checkpoints = Checkpoints(RunDirectory(tmp_path))
    for step in (1, 2):
        newest = checkpoints.write({"step": step})
    newest.with_name(newest.name + ".sha256").write_bytes(b"\x80")
    loaded = checkpoints.load_newest()
    assert loaded is not None
    assert loaded[1]["step"] == 1
