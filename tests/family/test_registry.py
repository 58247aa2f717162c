"""Which families there are, and where their code lies."""

import subprocess
import sys

import pytest

from kdgat.family import Detects, Family, find_family
from kdgat.stage import StageInputError
from kdgat.stage.families import family_names, family_package


def test_the_families_of_this_distribution_are_there() -> None:
    assert [find_family(name).name for name in family_names()] == ["can", "lap", "trees", "experiment"]
    assert isinstance(find_family("can"), Detects)
    assert not isinstance(find_family("lap"), Detects)


def test_another_distribution_brings_a_family_along(toy: Family) -> None:
    assert family_names() == ["can", "lap", "trees", "experiment", "toy"]
    assert family_package("toy") == "toy_family"
    assert toy.name == "toy"


def test_an_unknown_family_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(StageInputError, match="family 'cna' is unknown: choose one of can, lap, trees"):
        find_family("cna")


@pytest.mark.processes
def test_planning_loads_neither_torch_nor_readers() -> None:
    code = (
        "import sys; from kdgat.family.registry import find_family;"
        "families = map(find_family, ('can', 'lap', 'trees'));"
        "data = {'can': {'data': {'dataset': 'x', 'data_root': 'x'}}};"
        "[f.plan(f.config.from_preset('quick', data.get(f.name, {}))) for f in families];"
        "print([n for n in ('torch','lightning','h5py','numba','polars','plotly','prefect') if n in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
