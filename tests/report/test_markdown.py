import pytest

from kdgat.report.markdown import PADDING, as_tables, escaped
from kdgat.run import Table

SCORES = Table.of(
    ["scenario", "windows", "F1", "false alarms"], [["test_01", "353", "0.9", "0.1"], ["test_02", "30", "0.8", "-"]], ""
)


def widths(text: str) -> list[int]:
    """Return how many characters each table of a text takes, as its page counts them."""
    found = []
    for part in text.split("\n\n"):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()]
        cells = [row for row in rows if set("".join(row)) != set("-:")]
        found.append(sum(PADDING + max(map(len, column)) for column in zip(*cells, strict=True)))
    return found


def test_a_table_that_fits_stays_as_it_is() -> None:
    assert as_tables(SCORES) == (
        "| scenario | windows | F1 | false alarms |\n| --- | --: | --: | --: |\n"
        "| test_01 | 353 | 0.9 | 0.1 |\n| test_02 | 30 | 0.8 | - |"
    )


def test_a_table_that_is_too_wide_becomes_several_with_the_same_rows() -> None:
    parts = as_tables(SCORES, width=30).split("\n\n")
    assert [part.splitlines()[0] for part in parts] == ["| scenario | windows | F1 |", "| scenario | false alarms |"]
    assert all("| test_02 |" in part for part in parts)


def test_columns_with_long_names_become_rows() -> None:
    scenarios = [f"test_0{number}_unknown_vehicle_unknown_attack" for number in range(5)]
    table = Table.of(["model", *scenarios], [["normal", *"12345"], ["ensemble", *"67890"]], "")
    text = as_tables(table)
    assert text.splitlines()[0] == "|  | normal | ensemble |"
    assert "| test_04_unknown_vehicle_unknown_attack | 5 | 0 |" in text
    assert max(widths(text)) <= 100


def test_a_table_of_texts_is_never_turned() -> None:
    table = Table.of(["stage", "x" * 60, "y" * 60], [["a", "b", "c"]], "", text_columns=(0, 1))
    assert [line.split("|")[1].strip() for line in as_tables(table).splitlines() if "---" not in line and line] == [
        *("stage", "a"),
        *("stage", "a"),
    ]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("test_01_known_vehicle", "test_01_known_vehicle"),
        ("a*b <i> [1]", r"a\*b \<i> \[1\]"),
        ("_private_ word_", r"\_private\_ word\_"),
        ("run `a*b_` now*", r"run `a*b_` now\*"),
    ],
)
def test_no_name_is_taken_for_markup(text: str, written: str) -> None:
    assert escaped(text) == written


def test_a_cell_keeps_its_column() -> None:
    assert "| a\\|b c |" in as_tables(Table.of(["x"], [["a|b\nc"]], ""))
