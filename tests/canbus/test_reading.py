"""A process that reads one file after the other, and may die of one."""

import errno
import gzip
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kdgat.canbus import read_recording
from kdgat.canbus.reading import ReadingProcess, ReadingRequest
from tests.canbus.recording_files import random_messages, write_text

pytestmark = pytest.mark.processes


def request(path: Path, **others: object) -> ReadingRequest:
    return ReadingRequest(str(path), "train_1", 0.01, True, **others)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def reader() -> Iterator[ReadingProcess]:
    with ReadingProcess() as found:
        yield found


def test_files_are_read_refused_and_brought_in(tmp_path: Path, reader: ReadingProcess) -> None:
    good = write_text(tmp_path / "a.csv", random_messages(40), "can-train-and-test.csv")
    assert reader.ask(request(good)) == ("", False)
    into = {"name": "a", "folder": str(tmp_path / "cars"), "put_aside": str(tmp_path / "old")}
    assert reader.ask(request(good, **into)) == ("", False)
    brought = tmp_path / "cars" / "train_1__a.parquet"
    assert len(read_recording(brought)) == 40
    (tmp_path / "b.csv").write_text("no recording at all")
    assert "has an unknown format" in reader.ask(request(tmp_path / "b.csv")).refusal
    unlabelled = write_text(tmp_path / "c.log", random_messages(40), "candump.log")
    assert "has no labels" in reader.ask(request(unlabelled)).refusal
    with pytest.raises(FileNotFoundError):
        reader.ask(request(tmp_path / "gone.csv"))
    odd = tmp_path / os.fsdecode(b"\xff.csv")
    good.rename(odd)
    assert reader.ask(request(odd)) == ("", False)


def test_what_somebody_ended_is_no_fault_of_the_file_and_a_kill_is(tmp_path: Path) -> None:
    good = write_text(tmp_path / "b.csv", random_messages(40), "can-train-and-test.csv")
    with ReadingProcess() as reader:
        for number in (signal.SIGTERM, signal.SIGKILL):
            assert reader.ask(request(good)) == ("", False)
            assert reader._process is not None
            reader._process.send_signal(signal.SIGSTOP)  # as slow as it takes
            threading.Timer(0.3, end, [reader._process, number]).start()
            if number == signal.SIGTERM:
                with pytest.raises(OSError, match="was ended by SIGTERM"):
                    reader.ask(request(good))
            else:
                answer = reader.ask(request(good))
                assert answer.is_lethal
                assert "ended the process that read it (SIGKILL" in answer.refusal
        assert reader.ask(request(good)) == ("", False)


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("opened", ["pathlib.Path.open", "kdgat.canbus.readers.detect.open_recording"])
def test_a_fault_of_the_filesystem_is_not_noted_as_one_of_the_file(
    opened: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_text(tmp_path / "a.csv", random_messages(40), "can-train-and-test.csv")
    path.write_bytes(gzip.compress(path.read_bytes()))  # which what unpacks it opens once more

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(opened, refuse)
    with pytest.raises(OSError, match="Input/output error"):
        request(path).refusal()
