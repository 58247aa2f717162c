"""A lock is had, another's, or not to be had, under every rule that filesystems have."""

import errno
import fcntl
import os

import pytest

from kdgat.base.locks import try_lock


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (errno.EAGAIN, False),
        (errno.EACCES, False),
        (errno.ENOLCK, None),
        (errno.ENOSYS, None),
        (errno.EOPNOTSUPP, None),
        (errno.EINVAL, None),
    ],
)
def test_what_filesystems_answer_is_told_apart(tmp_path, monkeypatch, number, answer):
    def refuse(file, kind):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "lock").open("a") as file:
        assert try_lock(file) is answer


def test_a_lock_is_held_until_its_file_is_closed_and_other_errors_are_raised(tmp_path):
    path = tmp_path / "lock"
    with path.open("a") as first, path.open("a") as second:
        assert [try_lock(first), try_lock(second)] == [True, False]
        first.close()
        assert try_lock(second)
    with pytest.raises(ValueError, match="closed"):
        try_lock(second)
