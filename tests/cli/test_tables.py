import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from kdgat.can.evaluation.results import Results
from kdgat.can.family import FAMILY
from kdgat.cli.tables import ATTEMPT_COLUMNS, attempts_table, output_console, print_rows, print_tables
from kdgat.run import Table
from tests.can.example_results import example


def test_tables_of_a_pipe_are_neither_cut_nor_coloured() -> None:
    console = Console(file=io.StringIO(), width=400)
    print_tables(console, FAMILY.tables(Results.model_validate(example())))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "test_01" in text
    assert "mean of 3 seeds" in text
    assert "…" not in text
    assert "\x1b" not in text


def test_long_names_break_after_underscores_where_it_is_narrow() -> None:
    content = example()
    name = "test_02_unknown_vehicle_known_attack"
    content["scenarios"][name] = content["scenarios"].pop("test_02")
    console = Console(file=io.StringIO(), width=100)
    print_tables(console, FAMILY.tables(Results.model_validate({**content, "curves": {}})))
    assert isinstance(console.file, io.StringIO)
    assert "…" not in console.file.getvalue()
    lines = [line.split(" ")[0] for line in console.file.getvalue().splitlines()]
    start = lines.index("test_02_unknown_vehicle_")
    assert lines[start + 1] == "known_attack"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_too_wide_for_a_terminal_goes_on_below_with_the_names_again(width: int) -> None:
    header = ["scenario", *(f"measure{number}" for number in range(8))]
    rows = [["known_vehicle", *(f"0.{number}001" for number in range(8))]]
    console = Console(file=io.StringIO(), width=width)
    print_tables(console, [Table.of(header, rows, "many")])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(heading in text for heading in header)
    assert all(value in text for value in rows[0][1:])
    assert text.count("scenario") > 1
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [80, 110])
def test_every_number_of_an_evaluation_stands_whole_on_one_line(width: int) -> None:
    header = ["scenario", *(f"{count} msg" for count in ("0", "1", "2-3", "4-9", "10+")), "F1 95 %"]
    header += ["benign in alarm 95 %", "episodes", "delay s", "worst"]
    cells = ["0.182 (22)", "0.0727 (55)", "0.486 (35)", "0.577 (26)", "0.692 (221)", "0.612 to 0.73"]
    cells += ["0.21 to 0.355", "13/13", "0.347", "0.491"]
    rows = [[f"test_0{one}_unknown_vehicle_unknown_attack", *cells] for one in range(2)]
    console = Console(file=io.StringIO(), width=width)
    caption = "what hides behind the F1: recall by injected messages in a window, benign windows in alarm, attacks"
    print_tables(console, [Table.of(header, rows, caption)])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert all(text.count(cell) >= 2 for cell in cells), "a number is neither cut nor broken"
    assert all(word in text for word in ("episodes", "msg", "worst"))
    assert max(map(len, text.splitlines())) <= width
    assert all(word in text.split() for word in caption.split()), "a caption is broken between words"


def test_long_texts_of_a_comparison_are_wrapped_and_lose_nothing() -> None:
    values = ["20 recordings of data/synthetic, " * 3, f"{'x' * 100}"]
    console = Console(file=io.StringIO(), width=80)
    row = ["data", "files", *values]
    print_tables(console, [Table.of(["", "what", "1", "2"], [row], "d", text_columns=(0, 1, 2, 3))])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("x") == 100
    assert text.split().count("data/synthetic,") == 3
    assert max(map(len, text.splitlines())) <= 80


def test_attempts_fit_a_terminal_of_eighty_columns_without_losing_a_word() -> None:
    row = dict.fromkeys(ATTEMPT_COLUMNS, "-") | {
        "stage": "distill_autoencoder-small-seed0",
        "attempt": "1",
        "job": "1234567",
        "end": "HostOutOfMemory",
        "what followed": "4G were not enough: again with 6G [sic]",
    }
    console = Console(file=io.StringIO(), width=80)
    console.print(attempts_table([row]))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1234567" in text
    assert "[sic]" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [74, 80])
def test_what_people_copy_is_never_broken_where_it_is_narrow(width: int) -> None:
    header = ["run", "family", "data", "started", "state", "first score"]
    name = "sweeps/hcrl_car_hacking/trial_03"
    row = [name, "can", "hcrl_car_hacking", "2026-11-24 18:00", "finished", "F1 on test_01 0.9123 (0.91 +- 0.01)"]
    console = Console(file=io.StringIO(), width=width)
    print_tables(console, [Table.of(header, [row], "1 run", text_columns=tuple(range(6)), is_whole=True)])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(word in text.split() for word in " ".join([*header, *row]).split())
    assert all(name in block for block in text.strip().split("\n\n"))
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 70, 120, 400])
def test_rows_break_between_words_alone_and_columns_without_room_stand_below_with_the_names(width: int) -> None:
    name, needs = "distill_autoencoder-small-seed0", ["autoencoder-large-seed0,", "curriculum-large-seed0"]
    console = Console(file=io.StringIO(), width=width)
    headings = ("stage", "parameters", "memory", "needs")
    print_rows(console, headings, [(name, "1,224,789", "[16G]", " ".join(needs))], wrapped=("needs",))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    words = [word for line in lines for word in line.split()]
    assert words.count("stage") == {40: 3, 70: 2, 120: 1, 400: 1}[width]
    if width > 40:  # else a name has no room beside a number
        assert {*headings, name, "1,224,789", "[16G]", *needs} == set(words)
    assert max(map(len, lines)) <= width


def test_wide_letters_are_not_cut() -> None:
    row = ("実験" * 8, "0.9123", "finished")
    console = Console(file=io.StringIO(), width=42)
    print_rows(console, ("run", "F1", "state"), [row])
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert set(row) <= set(text.split())
    assert max(map(cell_len, text.splitlines())) <= 42


def test_a_line_of_a_table_in_a_pipe_ends_with_its_last_word() -> None:
    pipe = io.StringIO()
    print_rows(output_console(pipe), ("what", "found"), [["Python", "3.11"], ["packages", "a longer sentence"]])
    lines = pipe.getvalue().splitlines()
    assert [line.rstrip() for line in lines] == lines
    assert len(lines) == 3


def test_a_key_is_whole_where_values_beside_it_can_be_wrapped() -> None:
    key = "training_of.distill_gat.max_epochs"
    rows = [[key, "key", "some words " * 9, "other words " * 9]]
    console = Console(file=io.StringIO(), width=120)
    print_tables(console, [Table.of(["what differed", "", "1", "2"], rows, "What differed", text_columns=(0, 1, 2, 3))])
    assert isinstance(console.file, io.StringIO)
    assert key in console.file.getvalue()
