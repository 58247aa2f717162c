"""One writer per folder, whatever kind of lock its filesystem makes of ours."""

import errno
import fcntl
import json
import os
import subprocess
from pathlib import Path

import pytest

from kdgat.base import UserError, wait_until
from kdgat.registry import Registry
from kdgat.run import OutputDirectory
from kdgat.stage import FailureKind
from kdgat.stage.errors import OwnerLostError, StageBusyError
from kdgat.stage.owner import Owner, own, require_free
from kdgat.stage.runner import failure_kind
from tests.support.faults import fail_at


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


def of_another_machine(monkeypatch, code):
    """Call it as if on another machine, whose locks do not reach this one."""
    with monkeypatch.context() as there:
        there.setattr("socket.gethostname", lambda: "elsewhere")
        there.setattr(fcntl, "flock", lambda file, kind: None)
        return code()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("kdgat.stage.owner.BEAT_S", 0.05)
    monkeypatch.setattr("kdgat.run.directory.SILENCE_S", 1.0)


def test_a_second_command_on_a_machine_that_locks_do_not_reach_leaves_the_run_to_the_first(
    tmp_path, quick, monkeypatch
):
    output = OutputDirectory(tmp_path)
    with output.lock() as owner:

        def second():
            with pytest.raises(ValueError, match="in use by pid"), output.lock():
                pytest.fail("two commands")

        of_another_machine(monkeypatch, second)
        assert owner.successor() == ""


def test_a_command_that_died_on_another_machine_is_followed_after_its_silence(tmp_path, quick, monkeypatch):
    output = OutputDirectory(tmp_path)
    of_another_machine(monkeypatch, lambda: Owner(output.owner_path).claim())
    with output.lock() as owner:
        assert owner.successor() == ""


def test_who_was_followed_hears_by_whom_and_does_not_beat_for_it(tmp_path, quick, monkeypatch):
    output = OutputDirectory(tmp_path)

    with output.lock() as owner:
        of_another_machine(monkeypatch, lambda: Owner(output.owner_path).claim())
        written = output.owner_path.stat().st_mtime_ns
        assert f"taken over by pid {os.getpid()} on elsewhere" in owner.successor()
        assert not wait_until(lambda: output.owner_path.stat().st_mtime_ns != written, 0.3)


def test_a_second_command_leaves_the_run_to_the_first_where_there_are_no_locks(tmp_path, quick, monkeypatch):
    def flock(file, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    output = OutputDirectory(tmp_path)
    with output.lock(), pytest.raises(ValueError, match=f"in use by pid {os.getpid()}"), output.lock():
        pytest.fail("two commands")


def test_a_process_that_is_gone_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("kdgat.run.directory.SILENCE_S", 3600.0)
    output = OutputDirectory(tmp_path)
    Owner(output.owner_path).claim()
    content = json.loads(output.owner_path.read_bytes())
    ended = subprocess.Popen(["true"])
    ended.wait()
    output.owner_path.write_text(json.dumps({**content, "pid": ended.pid}))
    with output.lock():
        pass


@pytest.fixture(params=[errno.ESTALE, errno.EIO, errno.EACCES, errno.ENOENT, None])
def unreadable(request, monkeypatch):
    """Let each look at a note fail, or show what a power cut left."""
    read = Path.read_bytes

    def answer(path):
        if not path.name.endswith("owner.json"):
            return read(path)
        if request.param is None:
            return b""
        raise OSError(request.param, os.strerror(request.param), str(path))

    monkeypatch.setattr(Path, "read_bytes", answer)
    return answer


def test_a_note_that_cannot_be_read_ends_no_owner_and_is_said_once(tmp_path, unreadable, caplog):
    with own(tmp_path / "lock", tmp_path / "owner.json") as owner:
        assert owner.successor() == ""
        owner.check()
        owner.check()
    (warning,) = caplog.messages
    assert str(tmp_path) in warning


def test_a_note_that_cannot_be_read_leaves_a_busy_folder_busy(tmp_path, unreadable):
    paths = tmp_path / "lock", tmp_path / "owner.json"
    with own(*paths), pytest.raises(StageBusyError), own(*paths):
        pytest.fail("two owners")


def test_who_comes_to_a_note_that_cannot_be_read_waits_for_its_owner_to_beat(tmp_path, quick, monkeypatch):
    output = OutputDirectory(tmp_path)
    with output.lock():
        monkeypatch.setattr("kdgat.stage.owner.read_owner", lambda path: None)

        def second():
            with pytest.raises(ValueError, match="in use by pid"), output.lock():
                pytest.fail("two commands")

        of_another_machine(monkeypatch, second)


def test_another_token_and_a_note_that_is_gone_are_understood(tmp_path):
    with own(tmp_path / "lock", tmp_path / "owner.json") as owner:
        Owner(owner.path).claim()
        with pytest.raises(OwnerLostError, match=f"taken over by pid {os.getpid()}"):
            owner.check()
        owner.path.unlink()
        with pytest.raises(OwnerLostError, match="by a process that has ended"):
            owner.check()


def broken(flock):
    """A filesystem in trouble: no lock is answered."""

    def lock(file, kind):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return lock


def test_a_lock_that_cannot_be_asked_is_a_sentence_and_a_fault_of_the_surroundings(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", broken(fcntl.flock))
    output = OutputDirectory(tmp_path)
    for lock in (own(tmp_path / "lock", tmp_path / "owner.json"), output.lock()):
        with pytest.raises(UserError, match=r"lock cannot be locked \(Input/output error\)") as raised, lock:
            pytest.fail("an owner")
        assert failure_kind(raised.value) is FailureKind.ENVIRONMENT
    output.require_free()  # who takes it finds out


def test_who_cannot_take_its_name_away_leaves_it(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, own(tmp_path / "lock", tmp_path / "owner.json"):
        fail_at(tmp_path / "owner.json", patch, lambda: OSError(errno.ESTALE, os.strerror(errno.ESTALE)))
    with own(tmp_path / "lock", tmp_path / "owner.json"):
        pass
