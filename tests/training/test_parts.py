import errno

import pytest

from kdgat.training import parts
from kdgat.training.parts import patiently


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PAUSES_S", (0.0, 0.0))


def test_what_the_filesystem_refuses_is_tried_again() -> None:
    answers = iter([OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EIO, "Input/output error")])

    def read() -> str:
        for error in answers:
            raise error
        return "read"

    assert patiently(read) == "read"


def test_a_refusal_that_lasts_is_raised() -> None:
    def read() -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(OSError, match="Stale"):
        patiently(read)


def test_a_mistake_is_raised_at_once() -> None:
    tries = []

    def read() -> str:
        tries.append(1)
        raise FileNotFoundError(errno.ENOENT, "no such part")

    with pytest.raises(FileNotFoundError):
        patiently(read)
    assert len(tries) == 1
