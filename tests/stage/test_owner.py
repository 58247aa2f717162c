"""One writer per folder, whatever kind of lock its filesystem makes of ours."""

import errno
import fcntl
import os

import pytest

from kdgat.registry import Registry
from kdgat.stage.errors import StageBusyError
from kdgat.stage.owner import own, require_free


def of_nfs_4(flock):
    """Byte-range locks, which Linux's client makes of `flock` there: a shared one needs a file that can be read."""

    def lock(file, kind):
        mode = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        if (kind & fcntl.LOCK_SH and mode == os.O_WRONLY) or (kind & fcntl.LOCK_EX and mode == os.O_RDONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, kind)

    return lock


def of_byte_ranges(flock):
    """As POSIX allows: a busy lock is EACCES."""

    def lock(file, kind):
        try:
            flock(file, kind)
        except BlockingIOError:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None

    return lock


def asked_in_vain(number):
    """Let a shared lock be answered by an error, whatever it is."""

    def rule(flock):
        def lock(file, kind):
            if kind & fcntl.LOCK_SH:
                raise OSError(number, os.strerror(number))
            flock(file, kind)

        return lock

    return rule


RULES = {
    "local": lambda flock: flock,
    "NFSv4": of_nfs_4,
    "byte ranges": of_byte_ranges,
    **{f"shared: {errno.errorcode[number]}": asked_in_vain(number) for number in sorted(errno.errorcode)},
}


@pytest.fixture(params=RULES)
def rule(request, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", RULES[request.param](fcntl.flock))
    return request.param


def test_a_busy_folder_is_busy_under_every_rule_of_locks_and_is_free_after_its_owner(tmp_path, rule):
    paths = tmp_path / "lock", tmp_path / "owner.json"
    with own(*paths), pytest.raises(StageBusyError, match=f"is in use by pid {os.getpid()}"), own(*paths):
        pytest.fail("two owners")
    with own(*paths):
        pass


@pytest.mark.parametrize("rule", ["local", "NFSv4", "byte ranges"], indirect=True)
def test_who_only_looks_hears_of_an_owner_under_every_rule(tmp_path, rule):
    paths = tmp_path / "lock", tmp_path / "owner.json"
    with own(*paths), pytest.raises(StageBusyError):
        require_free(*paths)
    require_free(*paths)


def test_a_writer_of_the_registry_waits_for_another_under_every_rule(tmp_path, rule, monkeypatch):
    monkeypatch.setattr("kdgat.registry.registry.LOCK_WAIT_S", 0.1)
    registry = Registry(tmp_path)
    registry.add({"a": b"x"}, family="can", dataset="d", content="0" * 64)
    paths = registry.path / "registry.lock", registry.path / "registry-owner.json"
    with own(*paths), pytest.raises(ValueError, match="in use"):
        registry.add({"a": b"y"}, family="can", dataset="d", content="1" * 64)
    assert registry.add({"a": b"y"}, family="can", dataset="d", content="1" * 64)
