"""What a flow looks at before an attempt is asked again with growing pauses, and a fault in the end."""

import errno
import logging
import os
from pathlib import Path

import pytest

from flows import stage_work
from flows.attempts import AttemptBody, AttemptResult
from flows.execution import Execution
from flows.stage_work import StageEnd, bearing_faults, perform
from kdgat.can.inputs import can_run
from kdgat.cluster import AttemptRecord, ResourceRequest, Site, StopRequest, decision
from kdgat.run import OutputDirectory, RunError, StageState
from tests.can.small_runs import make_config

OUTPUT = OutputDirectory("out")


class Stop:
    """Nobody asks for it; pauses are noted and not waited for."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def is_set(self) -> bool:
        return False

    def wait(self, limit_s: float) -> None:
        self.waited_s.append(limit_s)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_what_cannot_be_read_is_asked_again_and_nothing_is_said_to_start_again(number: int) -> None:
    answers = [OSError(number, os.strerror(number)) for _ in range(3)]
    said: list[str] = []
    stop = Stop()

    def look() -> str:
        if answers:
            raise answers.pop()
        return "as it was"

    assert bearing_faults(look, stop, Site(name="local"), said.append, OUTPUT) == "as it was"  # type: ignore[arg-type]
    assert len(said) == 3
    assert all(text.startswith("asked again in ") and os.strerror(number) in text for text in said)
    assert stop.waited_s == sorted(set(stop.waited_s))


def test_what_is_never_answered_is_a_fault_in_the_end_and_a_mistake_is_one_at_once() -> None:
    def look() -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def mistake() -> None:
        raise ValueError("no such recording")

    stop = Stop()
    with pytest.raises(OSError, match="Stale"):
        bearing_faults(look, stop, Site(name="local"), lambda text: None, OUTPUT)  # type: ignore[arg-type]
    assert stop.waited_s
    stop.waited_s.clear()
    with pytest.raises(ValueError, match="no such recording"):
        bearing_faults(mistake, stop, Site(name="local"), lambda text: None, OUTPUT)  # type: ignore[arg-type]
    assert not stop.waited_s


def no_attempt(record: AttemptRecord, body: AttemptBody) -> AttemptResult:
    raise AssertionError


def log(level: int, text: str) -> None:
    logging.getLogger("run").log(level, "%s", text)


@pytest.fixture
def execution(tmp_path: Path) -> Execution:
    config = make_config("quick", (), data={"dataset": "synthetic", "data_root": "data"})
    return Execution(can_run(config), OutputDirectory(tmp_path), Site(name="local"), ResourceRequest())


def test_a_filesystem_that_is_away_before_a_stage_begins_fails_no_stage(
    execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "FIRST_DELAY_S", 0.0)
    (planned, *_) = execution.startable(1)
    errors = [errno.ESTALE, errno.EDQUOT, errno.EIO, errno.EACCES]

    def once(*arguments: object) -> StageEnd:
        if errors:
            raise OSError(errors.pop(), "of this machine")
        return StageEnd("finished", "")

    monkeypatch.setattr(stage_work, "_perform", once)
    assert perform(planned, execution, StopRequest(), log, no_attempt).kind == "finished"
    assert execution.index.record(planned.name).state is StageState.RUNNING
    assert "of this machine" in execution.index.record(planned.name).message


def test_who_stops_while_a_filesystem_is_away_has_paused_a_stage_and_a_mistake_fails_it_at_once(
    execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planned, *_) = execution.startable(1)
    stop = StopRequest()
    stop.set("SIGINT")

    def once(*arguments: object) -> StageEnd:
        raise error

    monkeypatch.setattr(stage_work, "_perform", once)
    error: Exception = OSError(errno.ESTALE, "Stale file handle")
    assert perform(planned, execution, stop, log, no_attempt).kind == "paused"
    assert execution.index.record(planned.name).state is StageState.PAUSED
    assert execution.index.record(planned.name).message.startswith("ENVIRONMENT: ")
    error = RunError("no such stage")
    assert perform(planned, execution, StopRequest(), log, no_attempt).kind == "failed"
