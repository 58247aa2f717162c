"""Tables in text: what spreadsheets, pandas and numpy write is read as it is meant, or refused by row and column."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kdgat.assignment import read_cost
from kdgat.base import UserError

COSTS = np.random.default_rng(0).random((3, 4))


def read(tmp_path: Path, text: str, name: str = "a.csv") -> np.ndarray:
    """Read a table about which nothing is noted; a forbidden pair is inf."""
    (tmp_path / name).write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost, mask = read_cost(tmp_path / name)
    return cost if mask is None else np.where(mask, np.inf, cost)


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5\n3,4\n",
        "1;2.5\n3;4\n",
        "1;2,5\n3;4,0\n",
        "1\t2.5\n3\t4\n",
        "1\t2,5\n3\t4\n",
        "1 2.5\n 3   4\n",
        "sep=;\n1;2,5\n3;4\n",
        '"1","2.5"\n"3","4"\n',
        "\ufeff1,2.5\r\n3,4\r\n",
        "# a heading of numpy\n1,2.5\n\n3,4 # so it is\n######\n",
        "#a,b\n1,2.5\n#2,3\n3,4\n",
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt"])
def test_delimiters_decimal_commas_quotes_and_comments_are_understood(tmp_path: Path, text: str, name: str) -> None:
    assert read(tmp_path, text, name).tolist() == [[1.0, 2.5], [3.0, 4.0]]


def test_infinity_forbids_a_pair(tmp_path: Path) -> None:
    assert read(tmp_path, "1,inf\nInfinity,2\n").tolist() == [[1.0, np.inf], [np.inf, 2.0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,9\n#N/A,1\n2,3\n", "row 2, column 1 is '#N/A'"),
        ("1 2 #N/A\n3 4 #N/A\n", "row 1, column 3 is '#N/A'"),
        ("1,2\n3,#DIV/0!\n", "row 2, column 2 is '#DIV/0!'"),
        ("#REF!,2\n3,4\n", "row 1, column 1 is '#REF!'"),
        ("1;2\n#WERT!;4\n", "row 2, column 1 is '#WERT!'"),
        ("1;2\n3;#NV\n", "row 2, column 2 is '#NV'"),
        ("1,2\n####,4\n", "row 2, column 1 is '####'"),
        ("1,2\nNULL,4\n", "row 2, column 1 is 'NULL'"),
        ("1,2\n3,nan\n", "row 2, column 2 is 'nan'"),
        ("1,2\n-inf,3\n", "row 2, column 1 is '-inf': write a number there, or inf"),
        ("1,2,\n3,4,\n", "row 1, column 3 is empty"),
        ("1,2\n,\n", "row 2, column 1 is empty"),
        ("1e400,2\n3,4\n", "row 1, column 1 is '1e400', beyond the largest number of 64 bits"),
        ("1,-1e400\n3,4\n", "row 1, column 2 is '-1e400', beyond"),
        ("a,b\n1,2\n", "row 1, column 1 is 'a', expected a number.* and no heading"),
        ("# x\n\n1,2\n3,x\n", r"row 2 \(line 4\), column 2 is 'x'"),
        ("1,2\n3\n", "row 2 has 1 columns, row 1 has 2"),
        ("1.234,5;2\n3;4,5\n", "row 1, column 1 is '1.234,5'.* and nothing at thousands"),
        ("1.5;2,5\n3;4\n", "row 1, column 1 is '1.5', other numbers have decimal commas"),
        ("1,234\t5\n", "'1,234' may be a decimal number, or thousands"),
        ('"1,5","2"\n', "row 1, column 1 is '1,5'"),
        ("1_000,2\n", "row 1, column 1 is '1_000'"),
        ("50%,2\n", "row 1, column 1 is '50%'"),
    ],
)
def test_what_is_no_number_is_named_by_row_and_column_counted_from_one(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(UserError, match=rf"a\.csv: {words}") as caught:
        read_cost(tmp_path / "a.csv")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"delimiter": ","}, {"delimiter": "\t"}, {"fmt": "%.17g", "header": "x y"}])
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_what_savetxt_writes_is_read(tmp_path: Path, options: dict[str, str], name: str) -> None:
    np.savetxt(tmp_path / name, COSTS, **options)
    assert np.array_equal(read_cost(tmp_path / name)[0], COSTS)


@pytest.mark.parametrize(
    ("header", "index", "words"),
    [
        (True, True, "row 1, column 1 is empty"),
        (True, False, r"row 1 is 0, 1, 2, 3, and all else has decimals: column names.*header=False"),
        (False, True, r"column 1 is 0, 1, 2, and all else has decimals: an index.*index=False"),
        (False, False, None),
    ],
)
def test_names_of_lines_that_pandas_writes_are_no_costs(
    tmp_path: Path, header: bool, index: bool, words: str | None
) -> None:
    pd.DataFrame(COSTS).to_csv(tmp_path / "a.csv", header=header, index=index)
    if words is None:
        assert np.array_equal(read_cost(tmp_path / "a.csv")[0], COSTS)
        return
    with pytest.raises(UserError, match=words):
        read_cost(tmp_path / "a.csv")


def test_whole_numbers_under_a_heading_of_numbers_are_noted(tmp_path: Path) -> None:
    whole = pd.DataFrame(np.random.default_rng(1).integers(5, 30, (4, 4)))
    for options, words in (({"index": False}, "row 1 is 0, 1, 2, 3, and is"), ({"header": False}, "column 1 is 0, 1")):
        whole.to_csv(tmp_path / "a.csv", **options)
        with pytest.warns(UserWarning, match=words):
            assert sum(read_cost(tmp_path / "a.csv")[0].shape) == 9


def test_distances_on_a_line_are_what_they_say(tmp_path: Path) -> None:
    places = np.arange(5)
    np.savetxt(tmp_path / "a.csv", abs(places[:, None] - places), fmt="%d", delimiter=",")
    assert read(tmp_path, (tmp_path / "a.csv").read_text())[0].tolist() == [0, 1, 2, 3, 4]
