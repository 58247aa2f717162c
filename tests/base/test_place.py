"""A place that cannot be written to is refused in one line with the fix, and looking at it leaves nothing there."""

import errno
import os
from pathlib import Path

import pytest

from kdgat.base import UserError, check_file, check_folder
from kdgat.base.place import describe_os_error


def test_a_folder_that_is_there_or_can_be_made_is_fine_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    check_folder(tmp_path / "there", "--out")
    check_folder(tmp_path / "new" / "below", "--out")
    check_file(tmp_path / "new" / "a.json", "--json")
    check_file(Path(os.devnull), "--json")
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_file_where_a_folder_is_wanted_and_the_other_way_round_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--out .*file is a file: name a folder"):
        check_folder(tmp_path / "file", "--out")
    with pytest.raises(UserError, match=r"^--json .* is a folder: name a file in it$"):
        check_file(tmp_path, "--json")
    for check in (check_folder, check_file):
        with pytest.raises(UserError, match=r"^--out .*file is no folder, so nothing can be made below it"):
            check(tmp_path / "file" / "a" / "b", "--out")


def test_a_disk_with_too_little_room_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"MB are free there, and at least .* MB are needed: free some space"):
        check_folder(tmp_path, "--out", room=1 << 60)


@pytest.mark.parametrize("name", ["a\0b", "a" * 300])
def test_a_name_that_no_file_can_have_is_a_mistake_of_the_user(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="--out"):
        check_file(tmp_path / name, "--out")


def test_a_device_is_no_file_that_something_takes_the_place_of(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no folder"):
        check_file(Path(os.devnull) / "below", "--out")


def test_an_error_of_the_system_names_the_file_and_the_fix(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "a.json"))
    assert describe_os_error(full).startswith(f"{tmp_path / 'a.json'}: the disk is full: free some space")
    unusual = OSError(errno.EIO, "Input/output error", "x")
    assert describe_os_error(unusual) == "x: input/output error"
