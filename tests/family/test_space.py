import random
from pathlib import Path

import pytest

from kdgat.base import ConfigurationError, UserError
from kdgat.family import Space
from kdgat.family.space import Draw, split_values

RATE, DECAY = "training.learning_rate", "training.weight_decay"


def test_all_combinations_of_listed_values_are_trials() -> None:
    found = Space.of([f"{RATE}=1e-3,3e-4", "training.patience=null,5"]).assignments()
    assert [tuple(one.values()) for one in found] == [
        ("0.001", "null"), ("0.001", "5"), ("0.0003", "null"), ("0.0003", "5"),
    ]  # fmt: skip


def test_draws_go_through_the_combinations_in_turn_and_stay_in_their_range() -> None:
    found = Space.of([f"{RATE}=1e-3,3e-4"], [f"{DECAY}=log:1e-6:1e-2"], trials=20).assignments()
    assert [one[RATE] for one in found] == ["0.001", "0.0003"] * 10
    drawn = [float(one[DECAY]) for one in found]
    assert all(1e-6 <= value <= 1e-2 for value in drawn)
    assert sum(value < 1e-4 for value in drawn) in range(5, 16)  # evenly in the logarithm


def test_more_trials_and_more_keys_leave_those_before_as_they_were() -> None:
    few = Space.of((), [f"{DECAY}=log:1e-6:1e-2"], trials=3, seed=1).assignments()
    more = Space.of((), [f"{DECAY}=log:1e-6:1e-2", "training.max_epochs=int:1:9"], trials=9, seed=1).assignments()
    assert [one[DECAY] for one in more][:3] == [one[DECAY] for one in few]
    other = Space.of((), [f"{DECAY}=log:1e-6:1e-2"], trials=3, seed=2).assignments()
    assert other != few


@pytest.mark.parametrize(
    ("form", "ends"),
    [("int:1:3", ("1", "3")), ("uniform:0:0.5", ("0", "0.5")), ("choice:[8, 4],[16]", ("[8, 4]", "[16]"))],
)
def test_every_form_draws_what_its_ends_allow(form: str, ends: tuple[str, ...]) -> None:
    draw = Draw.parse("key", form)
    assert draw.ends == ends
    drawn = {draw.draw(random.Random(number)) for number in range(50)}
    if form.startswith("uniform"):
        assert all(0 <= float(value) <= 0.5 for value in drawn)
    else:
        assert drawn == ({"1", "2", "3"} if form.startswith("int") else set(ends))


def test_values_are_split_outside_of_brackets_and_written_as_what_they_are() -> None:
    assert split_values("k", "[16, 8, 4], [8, 4]") == ["[16, 8, 4]", "[8, 4]"]
    assert split_values("k", "1e-3,0.5,null,true,gat,16:00:00") == ["0.001", "0.5", "null", "true", "gat", "'16:00:00'"]


def test_a_file_says_the_same_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        f"grid: {{{RATE}: [1e-3, 3e-4]}}\nrandom: {{{DECAY}: 'log:1e-6:1e-2'}}\ntrials: 4\nseed: 3\n", encoding="utf-8"
    )
    words = Space.of([f"{RATE}=1e-3,3e-4"], [f"{DECAY}=log:1e-6:1e-2"], trials=4, seed=3)
    assert Space.of(file=file).assignments() == words.assignments()
    assert len(Space.of([f"{RATE}=1"], trials=7, file=file).assignments()) == 7
    file.write_text("grids: {}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="unknown key 'grids': did you mean 'grid'"):
        Space.of(file=file)
    file.write_text("- 1\n", encoding="utf-8")
    with pytest.raises(UserError, match="it may have the keys"):
        Space.of(file=file)


@pytest.mark.parametrize(
    ("grid", "draws", "trials", "text"),
    [
        ([], [], None, "nothing to try"),
        (["training.max_epochs"], [], None, "has no key=value form"),
        (["a=1", "a="], [], None, "no value"),
        (["a=[1"], [], None, "is no list of values"),
        (["a=1"], [], 3, "only --random"),
        ([], ["a=log:1:2"], None, "needs --trials"),
        (["a=1,2,3"], ["b=log:1:2"], 2, "give at least as many"),
        (["a=1"], ["a=log:1:2"], 2, "is listed and drawn"),
        ([], ["a=logg:1:2"], 2, "did you mean 'log'"),
        ([], ["a=log:1"], 2, "expected two numbers"),
        ([], ["a=log:0:2"], 2, "must lie above 0"),
        ([], ["a=uniform:2:1"], 2, "LOW must be a number below HIGH"),
        ([], ["a=uniform:0:inf"], 2, "LOW must be a number below HIGH"),
        ([], ["a=int:1:2.5"], 2, "whole numbers"),
        (["a=1"], ["b=int:1:9"], 100_000, "list fewer"),
    ],
)
def test_what_is_wrong_is_said(grid: list[str], draws: list[str], trials: int | None, text: str) -> None:
    with pytest.raises(UserError, match=text):
        Space.of(grid, draws, trials)
