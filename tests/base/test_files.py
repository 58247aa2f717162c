"""A file is its old content or its new content, whatever happens to the writer."""

import errno
import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from kdgat.base import UserError, sha256_of_file, write_bytes_atomically, write_json_atomically
from kdgat.base.files import (
    is_gone,
    list_folder,
    list_folders,
    put_in_place,
    read_utf8,
    remove_temporary_files,
    remove_tree,
    write_snapshot,
)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_content_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.json"
    write_json_atomically(path, {"value": 1})
    write_json_atomically(path, {"value": [2, None, "ü"]})
    assert json.loads(path.read_text()) == {"value": [2, None, "ü"]}
    assert names(tmp_path) == ["a.json"]


def test_what_only_its_owner_may_read_is_never_there_for_others(tmp_path):
    modes = []
    path = tmp_path / "secret"

    def look():
        modes.extend(stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir())

    write_bytes_atomically(path, b"secret", mode=0o600, before_rename=look)
    assert [*modes, stat.S_IMODE(path.stat().st_mode)] == [0o600, 0o600]


def test_failed_write_keeps_the_old_content(tmp_path):
    path = tmp_path / "a"
    write_bytes_atomically(path, b"old")
    path_is_directory = tmp_path / "b"
    path_is_directory.mkdir()
    with pytest.raises(IsADirectoryError):
        write_bytes_atomically(path_is_directory, b"new")
    with pytest.raises(TypeError):
        write_bytes_atomically(path, "no bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a", "b"]


def test_hash_covers_files_larger_than_a_block(tmp_path):
    data = os.urandom((1 << 20) + 17)
    (tmp_path / "a").write_bytes(data)
    assert sha256_of_file(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_only_temporary_files_are_removed(tmp_path):
    for name in (".a.json.host.1.tmp", "b.tmp", ".hidden"):
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path)
    assert names(tmp_path) == [".hidden", "b.tmp"]


def test_what_another_process_may_be_writing_is_not_removed(tmp_path):
    for name in (".owner.json.host.1.tmp", ".spec.json.login.2.tmp"):
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path, others=[tmp_path / "spec.json"])
    assert names(tmp_path) == [".spec.json.login.2.tmp"]


def test_a_snapshot_that_cannot_be_written_is_one_warning_until_it_can(tmp_path, caplog):
    path = tmp_path / "gone" / "progress.json"
    write_snapshot(path, b"1")
    write_snapshot(path, b"2")
    (warning,) = caplog.messages
    assert str(path) in warning
    path.parent.mkdir()
    write_snapshot(path, b"3")
    assert path.read_bytes() == b"3"
    path.unlink()
    path.parent.rmdir()
    write_snapshot(path, b"4")
    assert len(caplog.messages) == 2


def test_an_error_names_the_file_that_was_to_be_written_and_not_the_temporary_one(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_bytes_atomically(tmp_path / "missing" / "a.json", b"1")
    assert error.value.filename == str(tmp_path / "missing" / "a.json")


@pytest.mark.parametrize(
    ("data", "words"),
    [("a: 1".encode("utf-16"), "is text in UTF-16: save it as UTF-8"), (b"a: \xff", r"byte 3 is 0xff")],
)
def test_text_in_another_encoding_is_named_with_the_fix(tmp_path, data, words):
    (tmp_path / "a.yaml").write_bytes(data)
    with pytest.raises(UserError, match=words):
        read_utf8(tmp_path / "a.yaml")


@pytest.fixture
def renamed_twice(monkeypatch):
    """Let each rename be done twice, and be told as the second one: an answer of an NFS server is lost."""
    rename = Path.replace

    def twice(path, target):
        rename(path, target)
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", twice)


def test_a_rename_that_the_filesystem_repeats_is_done(tmp_path, renamed_twice):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    write_bytes_atomically(path, b"new")
    assert (path.read_bytes(), names(tmp_path)) == (b"new", ["a"])
    (tmp_path / "folder").mkdir()
    put_in_place(tmp_path / "folder", tmp_path / "b")
    assert names(tmp_path) == ["a", "b"]


def test_a_file_that_is_gone_before_its_rename_is_a_fault_of_the_filesystem(tmp_path, monkeypatch):
    rename = Path.replace

    def gone(path, target):
        path.unlink()
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", gone)
    (tmp_path / "a").write_bytes(b"another one")
    with pytest.raises(OSError, match="is gone before it was renamed") as caught:
        write_bytes_atomically(tmp_path / "a", b"new")
    assert caught.value.errno == errno.ESTALE
    assert (tmp_path / "a").read_bytes() == b"another one"


def test_a_repeated_rename_is_known_by_the_opened_file_and_not_by_what_a_client_remembers(
    tmp_path, renamed_twice, monkeypatch
):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    remembered = path.stat()
    ask = Path.stat
    monkeypatch.setattr(
        Path, "stat", lambda self, **options: remembered if self.parent == tmp_path else ask(self, **options)
    )
    write_bytes_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_look_at_a_temporary_file_that_fails_is_no_failure_to_write(tmp_path, monkeypatch):
    def stale(path, **options):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    temporary = tmp_path / "t"
    temporary.write_bytes(b"new")
    with monkeypatch.context() as looked_at:
        looked_at.setattr(Path, "stat", stale)
        looked_at.setattr(os, "fstat", stale)
        put_in_place(temporary, tmp_path / "a")
    assert names(tmp_path) == ["a"]


def test_no_two_writers_have_the_same_temporary_file(tmp_path):
    path = tmp_path / "a"
    inner = []

    def write_again():
        if not inner:
            inner.append(True)
            write_bytes_atomically(path, b"inner")

    write_bytes_atomically(path, b"outer", before_rename=write_again)
    assert (path.read_bytes(), names(tmp_path)) == (b"outer", ["a"])


def test_a_link_under_the_name_of_the_temporary_file_is_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr("kdgat.base.files.temporary_path", lambda path: path.with_name(".known.tmp"))
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / ".known.tmp").symlink_to(tmp_path / "mine")
    with pytest.raises(FileExistsError):
        write_bytes_atomically(tmp_path / "secret", b"key", mode=0o600)
    assert (tmp_path / "mine").read_bytes() == b"mine"


@pytest.fixture
def kept_open(monkeypatch):
    """Keep some files as NFS does that somebody has open: they cannot be removed, nor can the folder."""
    unlink = os.unlink

    def refuse(path, **options):
        if ".nfs" in str(path):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)


def test_a_folder_in_which_somebody_has_a_file_open_is_removed_but_for_that_and_it_is_said(tmp_path, kept_open, caplog):
    folder = tmp_path / "folder"
    for name in ("a", "inner/b", "inner/.nfs0001"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert not remove_tree(folder)
    assert names(folder) == ["inner"]
    assert names(folder / "inner") == [".nfs0001"]
    (warning,) = caplog.messages
    assert str(folder) in warning
    (folder / "inner" / ".nfs0001").rename(tmp_path / "closed")
    assert remove_tree(folder)
    assert remove_tree(folder)  # gone
    assert names(tmp_path) == ["closed"]


def test_a_file_is_gone_only_where_its_folder_can_be_listed(tmp_path):
    (tmp_path / "a").touch()
    (tmp_path / "mount").mkdir()
    places = ("a", "b", "no/b", "a/b", "mount/b", "mount/no/b")
    assert [is_gone(tmp_path / place) for place in places] == [False, True, True, True, True, False]


def test_a_folder_that_does_not_answer_hides_what_is_gone(tmp_path, monkeypatch):
    def stale(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "iterdir", stale)
    assert not is_gone(tmp_path / "b")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_filesystem_that_cannot_sync_folders_is_written_to_and_one_that_cannot_sync_files_is_not(
    tmp_path, monkeypatch, number
):
    def refuse(kind):
        def fsync(descriptor):
            if kind(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    refuse(stat.S_ISDIR)
    write_bytes_atomically(tmp_path / "a", b"new")
    refuse(stat.S_ISREG)
    with pytest.raises(OSError, match=os.strerror(number)):
        write_bytes_atomically(tmp_path / "a", b"newer")
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path, monkeypatch, number):
    for name in ("b-2", "a-1", "c"):
        (tmp_path / name).touch()
    assert list_folder(tmp_path, "?-*") == [tmp_path / "a-1", tmp_path / "b-2"]
    assert list_folder(tmp_path / "missing") == []

    def refuse(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        list_folder(tmp_path)


def test_a_link_is_gone_with_what_it_leads_to_and_stays_where_it_cannot_be_removed(tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "other").touch()
    (tmp_path / "link").symlink_to(tmp_path / "scratch" / "purged")
    assert is_gone(tmp_path / "link")

    def refuse(path, *_arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert not remove_tree(tmp_path / "link")


def test_a_folder_is_listed_with_those_below_it_without_a_look_at_each_file(tmp_path, monkeypatch):
    for name in ("a.json", "inner/b.json", "inner/more/c.json", "inner/d.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def refuse(path, **_options):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    assert [path.name for path in list_folders(tmp_path, "*.json")] == ["a.json", "b.json", "c.json"]
    assert list_folders(tmp_path / "missing", "*") == []
