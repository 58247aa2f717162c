from pathlib import Path

import pytest

from flows.log_tail import LogTail, remove_old_output, trim


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stage.log"


def append(path: Path, text: str | bytes) -> None:
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def test_lines_of_earlier_attempts_are_left_out(log: Path) -> None:
    append(log, "an earlier attempt\n")
    tail = LogTail(log)
    assert tail.new_lines() == []
    append(log, "epoch 1\nepoch 2\n")
    assert tail.new_lines() == ["epoch 1", "epoch 2"]
    assert tail.new_lines() == []


def test_a_log_may_begin_later(log: Path) -> None:
    tail = LogTail(log)
    assert tail.new_lines() == []
    append(log, "epoch 1\n")
    assert tail.new_lines() == ["epoch 1"]


def test_a_line_is_passed_on_when_it_is_whole(log: Path) -> None:
    tail = LogTail(log)
    append(log, "epoch 1: loss ")
    assert tail.new_lines() == []
    append(log, "0.5\nepoch 2")
    assert tail.new_lines() == ["epoch 1: loss 0.5"]
    append(log, "\n")
    assert tail.new_lines() == ["epoch 2"]


def test_a_letter_that_arrives_in_two_parts_stays_one(log: Path) -> None:
    tail = LogTail(log)
    first, second = "é".encode()[:1], "é".encode()[1:]
    append(log, b"caf" + first)
    assert tail.new_lines() == []
    append(log, second + b"\n")
    assert tail.new_lines() == ["café"]


def test_empty_lines_and_bytes_that_are_no_text_do_no_harm(log: Path) -> None:
    tail = LogTail(log)
    append(log, b"\n  \nbroken \xff byte\n")
    assert tail.new_lines() == ["broken \ufffd byte"]


def test_a_log_that_is_removed_has_no_new_lines(log: Path) -> None:
    append(log, "one\n")
    tail = LogTail(log)
    log.unlink()
    assert tail.new_lines() == []


def test_a_log_that_has_grown_too_long_keeps_its_end_and_its_writer_goes_on(log: Path) -> None:
    with log.open("ab", buffering=0) as writer:
        for number in range(100):
            writer.write(f"line {number}\n".encode())
        trim(log, max_bytes=200)
        writer.write(b"line 100\n")
        lines = log.read_text().splitlines()
        assert lines == [f"line {number}" for number in range(101 - len(lines), 101)]
        assert 5 < len(lines) < 20
        trim(log, max_bytes=200)
        assert log.read_text().splitlines() == lines


def test_a_log_that_is_not_there_is_not_made(log: Path) -> None:
    trim(log)
    assert not log.exists()


def test_of_what_jobs_printed_that_of_the_last_ones_of_each_stage_stays(tmp_path: Path) -> None:
    names = [f"kdgat-{stage}-0123abcd-{number}" for stage in ("normal", "fusion") for number in (8, 9, 10, 11)]
    for name in [*names, "kdgat-autoencoder-0123abcd-7"]:
        for suffix in (".out", ".err"):
            (tmp_path / f"{name}{suffix}").touch()
    other = tmp_path / ".dask-jobqueue.worker.key"
    other.touch()
    remove_old_output(tmp_path, kept=2)
    assert {path.stem for path in tmp_path.iterdir() if path != other} == {
        *(name for name in names if name.endswith(("-10", "-11"))),
        "kdgat-autoencoder-0123abcd-7",
    }
    assert len(list(tmp_path.iterdir())) == 11
    remove_old_output(tmp_path / "nowhere")
