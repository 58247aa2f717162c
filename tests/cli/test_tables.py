import copy
import io

from rich.console import Console

from kdgat.can.results import Results
from kdgat.cli.tables import ATTEMPT_COLUMNS, DEFAULT_DETECTOR, attempts_table, models_table, score_tables
from tests.can.example_results import example


def with_two_seeds(f1: float, other_f1: float | None) -> Results:
    content = example()
    first = content["models"]["normal"]["0"]
    second = copy.deepcopy(first)
    first["test_01"]["f1"], second["test_01"]["f1"] = f1, other_f1
    content["models"]["normal"]["1"] = second
    return Results.model_validate(content)


def test_a_model_shows_its_mean_over_seeds() -> None:
    header, rows = models_table(with_two_seeds(0.5, 0.75))
    assert header == ["model", "test_01", "test_02"]
    assert rows[0][:2] == ["normal", "0.6250"]


def test_a_seed_without_f1_is_left_out_of_the_mean() -> None:
    _, rows = models_table(with_two_seeds(0.5, None))
    assert rows[0][1] == "0.5000"


def test_the_default_detector_stands_below_the_models() -> None:
    results = Results.model_validate(example())
    _, rows = models_table(results)
    assert rows[-1][0] == DEFAULT_DETECTOR
    assert len(rows) == len(results.models) + 1


def test_tables_of_a_pipe_are_neither_cut_nor_coloured() -> None:
    console = Console(file=io.StringIO(), width=400)
    for table in score_tables(Results.model_validate(example())):
        console.print(table)
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
    console.print(score_tables(Results.model_validate({**content, "curves": {}}), is_narrow=True)[0])
    assert isinstance(console.file, io.StringIO)
    lines = [line.split(" ")[0] for line in console.file.getvalue().splitlines()]
    start = lines.index("test_02_unknown_vehicle_")
    assert lines[start + 1] == "known_attack"


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
