"""Recordings of CAN traffic in every format, read whole and as a stream; catalogs."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from kdgat.canbus import ReadLimits, read_recording, stream_recording, write_recording
from kdgat.canbus.readers import mf4
from tests.canbus.log_files import WRITERS
from tests.canbus.recording_files import FORMATS, random_messages, with_footer, write_text
from tests.fuzz.inputs import damaged
from tests.fuzz.target import Target, read_or_refuse

TEXT_SUFFIXES = (".csv", ".txt", ".log", ".asc", ".trc", "", ".csv.gz", ".log.gz")
LIMITS = (None, ReadLimits(max_bad_fraction=1.0))
CHANNELS = (None, "0", "can0", "1", "x")
NUM_MESSAGES = 12


@cache
def samples() -> dict[str, list[bytes]]:
    """Return whole recordings by kind of reader."""
    messages = random_messages(NUM_MESSAGES)
    found: dict[str, list[bytes]] = {"text": [], "blf": [], "pcap": [], "mf4": [], "parquet": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for text_format in FORMATS:
            found["text"].append(write_text(folder / text_format, messages, text_format).read_bytes())
        for file_name, (write, _) in WRITERS.items():
            path = folder / file_name
            kind = path.suffix.lstrip(".").replace("pcapng", "pcap")
            found[kind if kind in found else "text"].append(write(path, messages).read_bytes())
        for labelled in (True, False):
            messages.labelled = labelled
            write_recording(folder / "a.parquet", messages)
            found["parquet"].append((folder / "a.parquet").read_bytes())
    found["parquet"] += [b"", *(with_footer(bytes([head]) * 3000) for head in (0x19, 0x1A, 0x1C))]  # nested without end
    return found


def read_both(folder: Path, name: str, data: bytes, limits: ReadLimits | None, channel: str | None) -> None:
    """Read a recording whole and in chunks: what one refuses is no surprise of the other."""
    path = folder / name
    path.write_bytes(data)
    read_or_refuse(folder, lambda: read_recording(path, limits=limits, channel=channel))
    read_or_refuse(folder, lambda: list(stream_recording(path, 5, limits=limits, channel=channel)))


def _texts() -> st.SearchStrategy[tuple[str, bytes, int, int]]:
    return st.tuples(st.sampled_from(TEXT_SUFFIXES), damaged(samples()["text"]), st.integers(0, 1), st.integers(0, 4))


def _check_text(folder: Path, drawn: tuple[str, bytes, int, int]) -> None:
    suffix, data, limits, channel = drawn
    if suffix.endswith(".gz"):
        whole = gzip.compress(data, compresslevel=1)
        data = whole if len(data) % 3 else whole[: len(data) % len(whole)]
    read_both(folder, f"train_a__drive{suffix}", data, LIMITS[limits], CHANNELS[channel])


def _binaries(kind: str) -> st.SearchStrategy[tuple[bytes, int, int]]:
    return st.tuples(damaged(samples()[kind]), st.integers(0, 1), st.integers(0, 4))


def _binary(kind: str, share: int) -> Target:
    def check(folder: Path, drawn: tuple[bytes, int, int]) -> None:
        data, limits, channel = drawn
        read_both(folder, f"train_a__drive.{kind}", data, LIMITS[limits], CHANNELS[channel])

    return Target(f"recording-{kind}", share, lambda: _binaries(kind), check)


def _check_mf4(folder: Path, data: bytes) -> None:
    """Read by a process of its own, a second each: asammdf can take its process with it."""
    (folder / "a.mf4").write_bytes(data)
    read_or_refuse(folder, lambda: read_recording(folder / "a.mf4"))


def _check_mf4_forked(folder: Path, data: bytes) -> None:
    """The same in a copy of this process, which has asammdf already: thousands can be tried."""
    import asammdf  # noqa: F401 - copied with this process

    (folder / "a.mf4").write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "run", _run_forked)
        read_or_refuse(folder, lambda: read_recording(folder / "a.mf4"))


def _run_forked(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
    """Do in a forked process what `python -m` the reader's module does in a new one."""
    assert command[1:4] == ["-P", "-m", mf4.__name__], command
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
                mf4.limit_process = lambda *_: "this process, which is larger"  # type: ignore[assignment]
                status = mf4.main(Path(command[4]), Path(command[5]), int(command[6]))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


TARGETS = (
    Target("recording-text", 120, _texts, _check_text),
    _binary("blf", 40),
    _binary("pcap", 40),
    _binary("parquet", 40),
    Target("recording-mf4", 1, lambda: damaged(samples()["mf4"]), _check_mf4, processes=True),
    Target("recording-mf4-forked", 25, lambda: damaged(samples()["mf4"]), _check_mf4_forked, processes=True),
)
