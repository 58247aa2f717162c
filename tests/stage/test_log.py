import logging
from pathlib import Path

import pytest

from kdgat.stage.directory import RunDirectory
from kdgat.stage.log import stage_log
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
    for text in ("first", "a lone surrogate \udc80"):
        with stage_log(directory, quiet=True):
            logger.info(text)
            assert text.encode(errors="backslashreplace") in directory.log_path.read_bytes()
    assert len(directory.log_path.read_text().splitlines()) == 2
