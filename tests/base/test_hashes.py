"""A file is hashed once for as long as nothing about it changes, and again as soon as something does."""

import errno
import json
import os
from pathlib import Path

import pytest

from kdgat.base import sha256_of_file, write_bytes_atomically
from kdgat.base.hashes import GONE, SETTLED_S, KnownHashes, sha256_once
from kdgat.stage.faults import is_environment_fault
from tests.support.hashed_bytes import HashedBytes


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "prepare" / "train.h5"
    path.parent.mkdir()
    path.write_bytes(bytes(10_000))
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is written now count as written long ago."""
    monkeypatch.setattr("kdgat.base.hashes.SETTLED_S", -1.0)
    assert SETTLED_S > 0


def test_what_was_noted_is_not_read_again_by_anybody(store: Path, settled: None, hashed: HashedBytes) -> None:
    known = KnownHashes(store.parent / "hashes.json")
    expected = known.sha256(store)
    known.write()
    assert hashed.num_bytes == 10_000
    again = KnownHashes(store.parent / "hashes.json")
    assert again.find(store) == again.sha256(store) == expected == sha256_of_file(store)
    assert hashed.num_bytes == 20_000, "the last of these alone"


@pytest.mark.parametrize("change", ["replaced", "rewritten", "longer", "copied"])
def test_a_changed_file_is_hashed_again(store: Path, settled: None, change: str) -> None:
    known = KnownHashes(store.parent / "hashes.json")
    known.sha256(store)
    before = store.stat()
    match change:
        case "replaced":
            write_bytes_atomically(store, b"\1" * 10_000)
            os.utime(store, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "rewritten":
            store.write_bytes(b"\1" * 10_000)
            os.utime(store, ns=(before.st_atime_ns, before.st_mtime_ns))  # the time of the last change tells
        case "longer":
            with store.open("ab") as file:
                file.write(b"\1")
        case "copied":
            content = store.read_bytes()
            store.unlink()
            store.write_bytes(content)
    assert known.find(store) is None
    assert known.sha256(store) == sha256_of_file(store) == known.find(store)


def test_a_file_that_may_be_changed_at_this_moment_is_not_noted_except_by_who_wrote_it(store: Path) -> None:
    known = KnownHashes(store.parent / "hashes.json")
    known.sha256(store)
    assert known.find(store) is None
    known.write()
    assert not known.path.exists(), "there is nothing to know"
    assert known.sha256(store, is_finished=True) == known.find(store)


def test_a_process_hashes_a_file_once(store: Path, settled: None, hashed: HashedBytes) -> None:
    for _ in range(3):
        sha256_once(store)
    assert hashed.num_bytes == 10_000
    store.write_bytes(b"other")
    assert sha256_once(store) == sha256_of_file(store)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": {}}', '{"a": {"signature": 1, "sha256": ""}}'])
def test_notes_that_cannot_be_read_cost_time_and_nothing_else(
    store: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.parent / "hashes.json"
    path.write_text(content)
    known = KnownHashes(path)
    assert "files are hashed again" in caplog.text
    assert known.find(store) is None
    known.sha256(store, is_finished=True)
    known.write()
    assert list(json.loads(path.read_text())) == ["train.h5"]


def test_a_folder_that_was_moved_still_knows_its_files(store: Path) -> None:
    known = KnownHashes(store.parent / "hashes.json")
    expected = known.sha256(store, is_finished=True)
    known.write()
    moved = store.parent.rename(store.parent.with_name("elsewhere"))
    assert KnownHashes(moved / "hashes.json").find(moved / "train.h5") == expected


@pytest.fixture
def noted(store: Path, settled: None) -> KnownHashes:
    known = KnownHashes(store.parent / "hashes.json")
    known.sha256(store)
    return known


def test_what_is_gone_cut_or_changed_is_told_from_what_was_copied(noted: KnownHashes, store: Path) -> None:
    content = store.read_bytes()
    store.unlink()
    assert noted.change(store) == GONE
    store.write_bytes(content[:-1])
    assert noted.change(store) == "cut short"
    store.write_bytes(b"x" + content[1:])
    assert noted.change(store) == "changed"
    store.write_bytes(content)
    assert noted.change(store) == ""


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_what_cannot_be_asked_about_or_read_is_no_change_but_a_fault(
    noted: KnownHashes, store: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: Path, *arguments: object, **options: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    for name in ("stat", "open"):
        store.write_bytes(store.read_bytes())  # another time
        with monkeypatch.context() as refused:
            refused.setattr(Path, name, refuse)
            with pytest.raises(OSError, match=os.strerror(number)) as caught:
                noted.change(store)
        assert is_environment_fault(caught.value)


def test_what_is_not_found_where_its_folder_does_not_answer_is_not_gone(
    noted: KnownHashes, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.unlink()

    def refuse(path: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(OSError, match="not known to be gone") as caught:
        noted.change(store)
    assert is_environment_fault(caught.value)


def test_a_length_that_the_client_remembers_is_asked_of_the_opened_file(
    noted: KnownHashes, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kdgat.base.hashes.signature_of", lambda file: (1, 1, 1, 1))
    assert noted.change(store) == ""
