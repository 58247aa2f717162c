"""Commands, exit statuses and results are what the files here say; see `record.py`."""

from pathlib import Path

import pytest

from tests.golden.record import COMMANDS, FAILURES, RESULTS, commands, failures, results_model

HINT = "if it is meant: `python -m tests.golden`, then look at the difference"


def test_commands_options_defaults_and_help_are_the_recorded_ones() -> None:
    assert commands().splitlines() == COMMANDS.read_text(encoding="utf-8").splitlines(), HINT


def test_a_mistake_of_each_kind_ends_with_the_recorded_status_and_line() -> None:
    assert failures().split("\n\n") == FAILURES.read_text(encoding="utf-8").split("\n\n"), HINT


@pytest.mark.parametrize("family", RESULTS)
def test_results_are_read_and_written_back_byte_for_byte(family: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results_model(family).read(RESULTS[family]).write(path)
    assert path.read_text(encoding="utf-8") == RESULTS[family].read_text(encoding="utf-8"), HINT


def test_every_family_has_recorded_results() -> None:
    assert sorted(RESULTS) == ["can", "lap", "trees"]
