"""Sentences on a terminal and in a pipe."""

import io

import pytest

from kdgat.base.text import say

SENTENCE = "data.windows.size 7: too large for this configuration of recordings, and too many, in this order\nnext line"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [20, 80, 120])
def test_a_terminal_breaks_lines_between_words_and_a_pipe_nowhere(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    terminal, pipe = Terminal(), io.StringIO()
    say(SENTENCE, terminal)
    say(SENTENCE, pipe)
    assert pipe.getvalue() == SENTENCE + "\n"
    assert terminal.getvalue().split() == SENTENCE.split()
    assert all(len(line) <= width for line in terminal.getvalue().splitlines())
    assert terminal.getvalue().endswith("\nnext line\n")
