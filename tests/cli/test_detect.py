"""`kdgat detect` and `kdgat model export` as a person types them: alarms, exit statuses, streams, and mistakes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kdgat.can.detection.watch import Summary
from kdgat.can.kinds import SMALL_ATTENTION
from kdgat.canbus import Messages, write_recording
from kdgat.cli.detect import unjudged_text
from tests.can.detection.untrained import drive, untrained
from tests.canbus.traffic import make_messages, merge
from tests.support.command_line import PROGRAM, kdgat, started_kdgat
from tests.support.page import Page
from tests.support.waiting import wait_until

QUIET, ALARMS, MISTAKE, INTERRUPTED = 0, 3, 1, 130
HEAVY = ("torch", "torch_geometric", "onnx", "h5py", "plotly", "polars")


def _lines(messages: Messages) -> list[str]:
    """Write messages as candump does."""
    columns = (messages.timestamp, messages.identifier.tolist(), messages.payload, messages.length.tolist())
    return [f"({t:.6f}) vcan0 {i:03X}#{bytes(p[:n]).hex().upper()}\n" for t, i, p, n in zip(*columns, strict=True)]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "drive.log"
    path.write_text("".join(_lines(drive())))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(SMALL_ATTENTION).write(tmp_path_factory.mktemp("model") / "student.onnx")


def _alarms(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_alarms_are_exit_status_3_and_none_is_0(tmp_path: Path) -> None:
    write_recording(tmp_path / "attacked.parquet", drive("suppression", duration_s=20.0))
    write_recording(tmp_path / "quiet.parquet", drive(None, duration_s=20.0))
    attacked = kdgat("detect", tmp_path / "attacked.parquet", status=ALARMS)
    assert "suppressed messages" in attacked.stdout
    assert "(overdue" in attacked.stdout
    quiet = kdgat("detect", tmp_path / "quiet.parquet", status=QUIET)
    assert quiet.stdout == ""
    assert quiet.stderr.splitlines()[-1].startswith("no alarm in ")  # a first run says that it compiles
    assert kdgat("detect", tmp_path / "quiet.parquet", "--quiet", status=QUIET).stderr == ""


def test_formats_tell_the_same_alarms(log: Path, model: Path, tmp_path: Path) -> None:
    alarms = _alarms(kdgat("detect", log, "--model", model, "--format", "json", status=ALARMS).stdout)
    assert len(alarms) > 1
    rows = list(csv.DictReader(io.StringIO(kdgat("detect", log, "--model", model, "--format", "csv").stdout)))
    assert [float(row["begin_s"]) for row in rows] == pytest.approx([one["begin_s"] for one in alarms], abs=1e-6)
    assert [row["guess"] for row in rows] == [one["guess"] for one in alarms]
    assert rows[0]["identifiers"].split() == [one["id"] for one in alarms[0]["identifiers"]]
    table = kdgat("detect", log, "--model", model, "--out", tmp_path / "new" / "alarms.txt", status=ALARMS)
    assert table.stdout == ""
    written = (tmp_path / "new" / "alarms.txt").read_text().splitlines()
    assert len(written) == 1 + len(alarms)
    assert all(f"{one['score']:.3f}" in line for one, line in zip(alarms, written[1:], strict=True))


def test_a_picture_is_a_page_with_every_alarm(log: Path, model: Path, tmp_path: Path) -> None:
    kdgat("detect", log, "--model", model, "--picture", tmp_path / "drive.html", status=ALARMS)
    page = Page.of_report(tmp_path / "drive.html")
    figure = page.data["figure-0-data"]
    assert "score of a window" in figure
    assert "seconds since the first window" in figure
    assert re.search(r"drive\.log: \d+ alarms?", page.words())


def _wait_for(path: Path, size: int) -> None:
    wait_until(lambda: path.is_file() and path.stat().st_size >= size, f"{size} bytes in {path}")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.processes
def test_a_followed_log_has_the_alarms_of_the_whole_file(
    end: signal.Signals, log: Path, model: Path, tmp_path: Path
) -> None:
    """Written in pieces that end in the middle of lines, until Ctrl-C, or a service manager ends it."""
    whole = kdgat("detect", log, "--model", model, "--format", "json", "--quiet").stdout
    growing, out, errors = tmp_path / "growing.log", tmp_path / "alarms.json", tmp_path / "errors"
    content = log.read_bytes()
    growing.write_bytes(content[:1000])
    words = ("--follow", str(growing), "--model", str(model), "--format", "json", "--out", str(out))
    with started_kdgat(errors, "detect", *words) as process, growing.open("ab", buffering=0) as written:
        for start in range(1000, len(content), 50_001):
            written.write(content[start : start + 50_001])
            time.sleep(0.01)
        _wait_for(out, len(whole.rpartition("\n{")[0]))  # the last alarm may wait for the end
        time.sleep(1.0)
        process.send_signal(end)
        assert process.wait(60) == ALARMS
    assert _alarms(out.read_text()) == [
        {**one, "score": pytest.approx(one["score"], abs=1e-5), "identifiers": _near(one["identifiers"])}
        for one in _alarms(whole)
    ]
    assert f"in {len(drive()):,} messages" in errors.read_text().splitlines()[-1]


@pytest.mark.processes
def test_alarms_seen_live_are_added_to_those_of_before(model: Path, tmp_path: Path) -> None:
    """By the clock, over a log that is whole: the stream waits at its end until it is told to stop."""
    write_recording(tmp_path / "drive.parquet", drive("suppression", duration_s=20.0))
    log, out = tmp_path / "drive.log", tmp_path / "alarms.csv"
    log.write_text("".join(_lines(drive("suppression", duration_s=20.0))))
    for _ in range(2):
        size = out.stat().st_size if out.exists() else 0
        words = ("--follow", str(log), "--format", "csv", "--out", str(out))
        with started_kdgat(tmp_path / "printed", "detect", *words) as process:
            _wait_for(out, size + 100)
            time.sleep(1.0)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == ALARMS
    rows = list(csv.DictReader(out.open()))
    begin_s = float(rows[-1]["begin_s"]) - drive("suppression", duration_s=20.0).timestamp[0]
    assert f"alarm begins {begin_s:.3f} s since start" in (tmp_path / "printed").read_text()
    half = len(rows) // 2
    assert half >= 1
    assert rows[:half] == rows[half:]


@pytest.mark.parametrize("words", [("-",), ("/dev/stdin",), ("--follow", "-")])
@pytest.mark.processes
def test_alarms_of_a_pipe_are_written_as_they_end(words: tuple[str, ...], tmp_path: Path) -> None:
    """By a slow writer, a loop of the shell, that goes on when the first alarm is over."""
    attacked, quiet = drive("suppression", duration_s=20.0), drive(None)
    later = quiet.select(slice(None))
    later.timestamp = quiet.timestamp - quiet.timestamp[0] + attacked.timestamp[-1] + 0.01
    log, out, rest = tmp_path / "drive.log", tmp_path / "alarms.json", tmp_path / "rest"
    lines = [*_lines(attacked), *_lines(later)]
    log.write_text("".join(lines))
    kdgat("detect", log, "--format", "json", "--out", tmp_path / "whole.json", status=ALARMS)
    whole = _alarms((tmp_path / "whole.json").read_text())
    begin = len(attacked) + int(np.searchsorted(later.timestamp, whole[0]["end_s"] + 2.0))
    assert begin < len(lines)
    (tmp_path / "head").write_text("".join(lines[:begin]))
    slow = f"split -l 500 --filter 'cat; sleep 0.05' {tmp_path}/head"
    loop = f"{slow}; while [ ! -e {rest} ]; do sleep 0.1; done; cat {rest}"
    command = shlex.join((*PROGRAM, "detect", *words, "--format", "json", "--out", str(out)))
    script = f"({loop}) | {command}"
    with subprocess.Popen(["bash", "-c", script], stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        _wait_for(out, 1)
        first = _alarms(out.read_text())
        rest.write_text("".join(lines[begin:]))
        _, errors = process.communicate(timeout=60)
    assert process.returncode == ALARMS
    assert first[0] == whole[0]
    assert _alarms(out.read_text()) == whole
    assert f"in {len(lines):,} messages" in errors.splitlines()[-1]


@pytest.mark.processes
def test_a_pipe_that_stays_open_is_left_at_ctrl_c(tmp_path: Path) -> None:
    out = tmp_path / "alarms.json"
    os.mkfifo(tmp_path / "fifo")
    words = (str(tmp_path / "fifo"), "--format", "json", "--out", str(out))
    with started_kdgat(tmp_path / "printed", "detect", *words) as process, (tmp_path / "fifo").open("w") as written:
        written.write("".join(_lines(drive("suppression", duration_s=20.0))))
        written.flush()
        _wait_for(out, 1)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ALARMS


@pytest.mark.parametrize("num_messages", [0, 200])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.processes
def test_a_stream_that_ends_before_anything_could_be_judged_has_not_been_free_of_alarms(
    end: signal.Signals, num_messages: int, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    printed = tmp_path / "printed"
    with (
        started_kdgat(printed, "detect", str(tmp_path / "fifo")) as process,
        (tmp_path / "fifo").open("w") as written,  # waits until it is opened to read
    ):
        written.write("".join(_lines(drive(None).select(slice(0, num_messages)))))
        written.flush()
        time.sleep(1.0)
        process.send_signal(end)
        assert process.wait(60) == MISTAKE
    assert ("too few to be judged by their times" if num_messages else "no message came") in printed.read_text()
    assert "no alarm" not in printed.read_text()


def _near(identifiers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**one, "evidence": pytest.approx(one["evidence"], abs=2e-3)} for one in identifiers]


@pytest.mark.processes
def test_a_bus_is_watched_until_it_is_interrupted(model: Path) -> None:
    """python-can's virtual bus lives inside one process: a thread of it sends."""
    script = f"""
import os, signal, threading, time
import can
from can.interfaces.virtual import channels
from kdgat.cli.main import main
from tests.canbus.traffic import make_messages, merge
from tests.can.detection.untrained import drive

messages = drive().select(slice(3000))

def send():
    with can.Bus("here", interface="virtual") as bus:
        while len(channels["here"]) < 2:
            time.sleep(0.01)
        for now, one, data, length in zip(messages.timestamp, messages.identifier, messages.payload, messages.length):
            extended = bool(one > 2047)
            data = bytes(data[:length])
            bus.send(can.Message(timestamp=float(now), arbitration_id=int(one), is_extended_id=extended, data=data))
        time.sleep(2.0)
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=send, daemon=True).start()
main(["detect", "-i", "here", "-c", "virtual", "--model", {str(model)!r}, "--format", "json"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode in (QUIET, ALARMS), done.stderr
    assert "in 3,000 messages" in done.stderr.splitlines()[-1]


@pytest.mark.processes
def test_a_finished_log_that_is_left_at_ctrl_c_is_not_said_to_be_free_of_alarms(log: Path) -> None:
    script = f"""
import os, signal, threading, time
from kdgat.cli.main import main

before = signal.getsignal(signal.SIGINT)

def interrupt():
    while signal.getsignal(signal.SIGINT) is before:  # until reading is about to begin
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
main(["detect", {str(log)!r}])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == INTERRUPTED, done.stderr
    assert done.stderr.splitlines()[-1].startswith("interrupted before the end: no alarm in ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "nothing given to look at"),
        (("LOG", "--follow", "LOG"), "LOG and --follow given"),
        (("-i", "can0"), "belong together"),
        (
            ("-i", "can0", "-c", "virtual", "--time-unit", "ms", "--drop-echo"),
            "--time-unit, --drop-echo cannot be used",
        ),
        (("--follow", "LOG", "--max-bad-fraction", "0.5"), "--max-bad-fraction cannot be used with --follow"),
        (("LOG", "--registry", "."), "give --model ID"),
        (("LOG", "--seed", "3"), "--seed 3 is of a network, and habits has none"),
        (("LOG", "--model", "MODEL", "--seed", "3"), "holds seed 0, not 3"),
        (("absent.log",), "absent.log: is no file"),
        ((".",), "is a folder; name one recording"),
        (("LOG", "--model", "LOG"), "drive.log is no ONNX file, or damaged: export it"),
        (("LOG", "--model", "."), "run.json"),
        (("LOG", "--detector", "normal"), "needs a model"),
        (("LOG", "--model", "MODEL", "--detector", "normal"), "holds distill_gat, not 'normal'"),
        (("LOG", "--model", "MODEL", "--picture", "a.png"), "only .html is written"),
        (("LOG", "--model", "MODEL", "--profile", "absent.json"), "absent.json"),
        (("-i", "nowhere", "-c", "no-such-interface"), "cannot be opened"),
    ],
)
def test_mistakes_are_one_line_and_no_result(
    words: tuple[str, ...], text: str, log: Path, model: Path, tmp_path: Path
) -> None:
    """With a text that says what to do, and nothing that looks like a result."""
    names = {"LOG": str(log), "MODEL": str(model)}
    answer = kdgat("detect", *(names.get(word, word) for word in words), status=MISTAKE, folder=tmp_path)
    assert text in answer.stderr
    assert answer.stdout == ""


def test_log_whose_times_are_no_seconds_is_refused_before_an_alarm(tmp_path: Path) -> None:
    messages = drive(None)
    messages.timestamp = 1e3 * (messages.timestamp - messages.timestamp[0])
    path = tmp_path / "millis.log"
    path.write_text("".join(_lines(messages)))
    refused = kdgat("detect", path, status=MISTAKE)
    assert refused.stdout == ""
    assert "say --time-unit ms " in refused.stderr
    assert "no alarm" not in refused.stderr
    assert "messages of 8.0 s" in kdgat("detect", path, "--time-unit", "ms", status=QUIET).stderr


def test_log_in_which_nothing_can_be_judged_is_a_mistake(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "short.log"
    path.write_text("".join(_lines(drive(None).select(slice(0, 200)))))
    refused = kdgat("detect", path, status=MISTAKE)
    assert "too few to be judged by their times; give a longer log, or a --model" in refused.stderr
    assert "no alarm" not in refused.stderr
    kdgat("detect", path, "--model", model, status=QUIET)


def test_log_that_ends_before_habits_count_is_a_mistake_however_many_messages_it_has(tmp_path: Path) -> None:
    path = tmp_path / "brief.log"
    path.write_text("".join(_lines(make_messages(np.arange(0.0, 2.0, 0.01), 0x100))))
    refused = kdgat("detect", path, status=MISTAKE)
    assert "no identifier comes more than 24 times and for 2.5 s in 200 messages of 2.0 s" in refused.stderr
    assert "no alarm" not in refused.stderr


def test_summary_says_how_many_identifiers_could_be_judged() -> None:
    some, all_of_them = Summary(num_judged=12, num_frequent=51), Summary(num_judged=51, num_frequent=51)
    assert some.sentence().endswith("; by their times 12 of 51 identifiers could be judged")
    assert "judged" not in all_of_them.sentence()
    assert unjudged_text(some, 81) == ", 39 came unevenly, 30 more too seldom or briefly"
    assert unjudged_text(some, 51) == unjudged_text(some, 0) == ", 39 came unevenly"
    assert unjudged_text(all_of_them, 52) == "; 1 identifier came too seldom or briefly to be judged by its times"
    assert unjudged_text(all_of_them, 51) == unjudged_text(all_of_them, 0) == ""


def test_summary_beside_alarms_says_by_what_else_identifiers_that_come_unevenly_were_judged(tmp_path: Path) -> None:
    """A flood in traffic without any period."""
    random = np.random.default_rng(0)
    traffic = make_messages(np.sort(random.uniform(0.0, 20.0, 4000)), random.choice([0x100, 0x200, 0x300], 4000))
    path = tmp_path / "flood.log"
    path.write_text("".join(_lines(merge(traffic, make_messages(np.arange(15.0, 17.0, 3e-4), 0)))))
    answer = kdgat("detect", path, status=ALARMS)
    assert "too many" in answer.stdout
    said = "; 3 identifiers came unevenly: judged by number, order and payloads of their messages, not by their times"
    assert f"{said}, 1 more too seldom or briefly (" in answer.stderr
    assert "none" not in answer.stderr


def test_damage_is_said(log: Path, model: Path, tmp_path: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    lines[500] = "(17 vcan0 nonsense\n"
    (tmp_path / "damaged.log").write_text("".join(lines))
    answer = kdgat("detect", tmp_path / "damaged.log", "--model", model, status=ALARMS)
    assert "note: 1 damaged row was passed over; line 501: " in answer.stderr


@pytest.mark.processes
def test_nothing_that_trains_is_loaded(log: Path, model: Path) -> None:
    """torch takes longer to import than a million messages to judge."""
    script = (
        "import sys\nfrom kdgat.cli.main import main\ntry:\n"
        f"    main(['detect', {str(log)!r}, '--model', {str(model)!r}, '--quiet'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
