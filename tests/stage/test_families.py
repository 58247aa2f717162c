from importlib import metadata

import pytest

from kdgat.assignment import CostError
from kdgat.stage import StageInputError
from kdgat.stage.families import BUILT_IN, ENTRY_POINTS, family_names, family_package, is_user_error


def test_families_of_this_distribution_have_their_packages() -> None:
    assert family_names()[: len(BUILT_IN)] == list(BUILT_IN)
    assert family_package("lap") == "kdgat.lap"


def test_an_unknown_family_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(StageInputError, match="family 'laps' is unknown: choose one of can, lap"):
        family_package("laps")


def test_what_a_user_can_put_right_is_told_from_a_fault_of_the_program() -> None:
    assert is_user_error(CostError("cost[0, 1] is nan"))
    assert is_user_error(FileNotFoundError(2, "No such file or directory", "a.csv"))
    assert not is_user_error(FileNotFoundError("without a name"))
    assert not is_user_error(BrokenPipeError(32, "Broken pipe", "a"))
    assert not is_user_error(ValueError("operands could not be broadcast together"))


def test_a_family_of_another_distribution_may_raise_a_value_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    error = type("LineError", (ValueError,), {"__module__": "lines.fits"})("slope=nan: give a number")
    assert not is_user_error(error)
    point = metadata.EntryPoint("lines", "lines", ENTRY_POINTS)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [point])
    assert is_user_error(error)
