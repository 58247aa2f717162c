"""What a flow looks at before an attempt is asked again with growing pauses, and a fault in the end."""

import errno
import logging
import os

import pytest

from flows import stages
from kdgat.cluster import AttemptLimits
from kdgat.run import OutputDirectory

OUTPUT = OutputDirectory("out")


class Stop:
    """Nobody asks for it; pauses are noted and not waited for."""

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def is_set(self) -> bool:
        return False

    def wait(self, limit_s: float) -> None:
        self.waited_s.append(limit_s)


@pytest.fixture(autouse=True)
def logger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "get_run_logger", lambda: logging.getLogger("flow"))


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_what_cannot_be_read_is_asked_again_and_nothing_is_said_to_start_again(number: int) -> None:
    answers = [OSError(number, os.strerror(number)) for _ in range(3)]
    said: list[str] = []
    stop = Stop()

    def look() -> str:
        if answers:
            raise answers.pop()
        return "as it was"

    assert stages.bearing_faults(look, stop, AttemptLimits(), said.append, OUTPUT) == "as it was"  # type: ignore[arg-type]
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
        stages.bearing_faults(look, stop, AttemptLimits(), lambda text: None, OUTPUT)  # type: ignore[arg-type]
    assert stop.waited_s
    stop.waited_s.clear()
    with pytest.raises(ValueError, match="no such recording"):
        stages.bearing_faults(mistake, stop, AttemptLimits(), lambda text: None, OUTPUT)  # type: ignore[arg-type]
    assert not stop.waited_s
