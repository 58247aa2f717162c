"""What a job of `kdgat doctor` writes down on a node, and what is made of it."""

import fcntl
import socket
import sys
import threading
from pathlib import Path

import pytest

from kdgat.cluster.attendance import CONNECTION_FILE, Connection
from kdgat.cluster.filesystem import BUSY, ask_both_locks, judge_locks
from kdgat.cluster.probe import (
    ANSWER,
    FINDINGS,
    LAST,
    LOGIN_LOCK,
    NODE_LOCK,
    Findings,
    check_cards,
    check_clock_of_node,
    check_delay,
    check_versions,
    main,
    versions,
)
from kdgat.stage.gpus import cards_of
from tests.support.waiting import wait_until

OURS = {"Python": "3.12.1", "kdgat": "0.2", "torch": "2.13.0", "distributed": "2026.8.0"}


def found_on_node(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Findings, list[str]]:
    """Run the job in a thread beside whoever submitted it; return what it found, and answers for the lock it holds."""
    connection = folder / CONNECTION_FILE
    words = [f"--directory={folder}", f"--connection={connection}", "--stall-timeout-s=9", "--alive-interval-s=9"]
    monkeypatch.setattr(sys, "argv", ["probe", "tls://login:1", *words])
    with (folder / LOGIN_LOCK).open("a+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = threading.Thread(target=main)
        job.start()
        wait_until((folder / FINDINGS).exists, "the findings")
        answers = ask_both_locks(folder / NODE_LOCK)
        (folder / ANSWER).touch()
        job.join()
    return Findings.model_validate_json((folder / FINDINGS).read_bytes()), answers


def test_each_side_asks_for_the_lock_that_the_other_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, answers = found_on_node(tmp_path, monkeypatch)
    assert found.locks == answers == [BUSY, BUSY]
    assert {check.state for check in found.checks} == {"good"}
    assert found.versions == versions()
    assert float((tmp_path / LAST).read_text()) > 0


def test_locks_that_one_machine_keeps_for_itself_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, kind: None)
    found, answers = found_on_node(tmp_path, monkeypatch)
    for check in (judge_locks(found.locks, "this machine"), judge_locks(answers, "n1")):
        assert check.state == "warning"
        assert "by their notes alone" in check.fix


def test_whether_the_node_reaches_the_one_that_submitted_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        Connection(address=f"tls://{address}", certificate="", key="").write(tmp_path / CONNECTION_FILE)
        assert found_on_node(tmp_path, monkeypatch)[0].unreachable == ""
    again = tmp_path / "again"
    again.mkdir()
    Connection(address=f"tls://{address}", certificate="", key="").write(again / CONNECTION_FILE)
    assert address in found_on_node(again, monkeypatch)[0].unreachable


def test_another_kdgat_or_no_torch_is_wrong_and_another_torch_a_warning() -> None:
    assert check_versions(OURS, OURS).state == "good"
    for theirs in ({**OURS, "kdgat": "0.1"}, {**OURS, "torch": None}):
        assert check_versions(theirs, OURS).state == "wrong"
    for theirs in ({**OURS, "torch": "2.12.0"}, {**OURS, "Python": "3.11.7"}, {**OURS, "distributed": None}):
        assert check_versions(theirs, OURS).state == "warning"
    assert "torch 2.12.0, here 2.13.0" in check_versions({**OURS, "torch": "2.12.0"}, OURS).found


def test_a_clock_that_is_off_says_when_stages_would_save() -> None:
    assert check_clock_of_node(0.2, 0.1).state == "good"
    assert check_clock_of_node(20.0, 30.0).state == "good", "files that took a minute tell no better"
    late = check_clock_of_node(-7200.0, 0.1)
    assert late.state == "warning"
    assert late.found.startswith("2 h 0 min behind")
    assert "too late for their walltime" in late.fix


def test_files_that_show_after_half_the_time_of_silence_name_the_key_of_the_site() -> None:
    assert check_delay(3.0, 60.0).state == "good"
    assert "silence_timeout_s (now 60)" in check_delay(40.0, 60.0).fix


def test_a_card_is_told_with_its_driver_and_a_job_that_was_given_none_is_wrong() -> None:
    cards = cards_of("Tesla V100-SXM2-32GB, 7.0, 535.183.01\nTesla V100-SXM2-32GB, 7.0, 535.183.01\n")
    assert check_cards(cards[:1])[1:3] == ("good", "Tesla V100-SXM2-32GB (7.0), driver 535.183.01")
    assert check_cards(cards).found.startswith("2 x Tesla")
    assert check_cards(()).state == "wrong"
