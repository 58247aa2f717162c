from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from kdgat.cli.tables import print_tables
from kdgat.lap.evaluation.results import LapResults
from kdgat.lap.evaluation.stage import collect_results
from kdgat.lap.family import FAMILY
from kdgat.run import OutputDirectory
from tests.lap.small_evaluations import make_run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> LapResults:
    return collect_results(OutputDirectory(make_run(tmp_path_factory.mktemp("run"), sizes=(20, 32), seeds=(0,))))


def printed(results: LapResults, width: int, *, has_details: bool = True) -> str:
    console = Console(file=StringIO(), width=width)
    print_tables(console, FAMILY.tables(results), has_details=has_details)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_every_method_at_the_largest_size_and_every_group_is_printed(results: LapResults) -> None:
    text = printed(results, 200)
    assert "uniform, n = 32" in text
    assert "uniform, n = 20" not in text
    for method in results.groups[-1].methods:
        assert method.name in text
    comparison = text.partition("\n\n")[0].splitlines()
    assert comparison[0] == "warm starts, trained mid_2048"
    rows = [line.split() for line in comparison if line.startswith(("uniform", "sparse"))]
    assert [(row[0], row[1]) for row in rows] == [
        ("uniform", "20"),
        ("uniform", "32"),
        ("sparse", "20"),
        ("sparse", "32"),
    ]


def test_without_details_one_table_is_printed_which_80_columns_do_not_split(results: LapResults) -> None:
    text = printed(results, 80, has_details=False)
    assert text.count("family") == 1
    assert "uniform, n = 32" not in text


def test_nothing_is_cut_on_a_narrow_terminal(results: LapResults) -> None:
    assert "…" not in printed(results, 80)
