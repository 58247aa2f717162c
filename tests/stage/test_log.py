import logging
from pathlib import Path

import pytest

from kdgat.stage import RunDirectory
from kdgat.stage.log import LogFile, stage_log
from tests.support.faults import unwritable

logger = logging.getLogger("kdgat.stage.test_log")


def test_a_log_that_cannot_be_written_for_a_while_ends_nothing_and_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory(tmp_path)
    with unwritable(directory.log_path), stage_log(directory, quiet=True):
        logger.info("one")
        logger.info("two")
    with stage_log(directory, quiet=True):
        logger.info("three")
    assert capsys.readouterr().err.count("stage.log cannot be written") == 1
    assert [line.rpartition(" ")[2] for line in directory.log_path.read_text().splitlines()] == ["three"]


def test_lines_are_written_at_once_and_after_those_of_earlier_attempts(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    for text in ("first", "größer"):
        with stage_log(directory, quiet=True):
            logger.info(text)
            assert text in directory.log_path.read_text(encoding="utf-8")
    assert len(directory.log_path.read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize(("message", "arguments"), [("a lone surrogate \udc80", ()), ("%d steps", ("two",))])
def test_a_line_that_cannot_be_written_down_ends_nothing(
    tmp_path: Path, message: str, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    handler = LogFile(tmp_path / "log")
    handler.handle(logging.LogRecord("kdgat", logging.INFO, __file__, 1, message, arguments, None))
    handler.handle(logging.LogRecord("kdgat", logging.INFO, __file__, 1, "after it", (), None))
    handler.close()
    assert (tmp_path / "log").read_text().splitlines()[-1] == "after it"
