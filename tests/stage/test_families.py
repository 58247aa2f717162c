import pytest

from kdgat.stage.errors import StageInputError
from kdgat.stage.families import BUILT_IN, family_names, family_package


def test_families_of_this_distribution_have_their_packages() -> None:
    assert family_names()[: len(BUILT_IN)] == list(BUILT_IN)
    assert family_package("lap") == "kdgat.lap"


def test_an_unknown_family_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(StageInputError, match="family 'laps' is unknown: choose one of can, lap"):
        family_package("laps")
