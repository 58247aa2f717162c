"""Every command that writes refuses a place that it cannot write to, in one line, before it computes anything."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import Answer

# What else is wrong, such as a run that is not there, is only looked at afterwards.
COMMANDS = (
    "train can --dataset x --data-root . --out PLACE",
    "train lap --out PLACE",
    "train trees --out PLACE",
    "evaluate can --run none --data-root . --json PLACE",
    "calibrate --clean x.csv --model none --out PLACE",
    "export none --out PLACE",
    "detect x.csv --out PLACE",
    "detect x.csv --picture PLACE.html",
    "data synth --out PLACE",
    "data import x.csv --dataset d --scenario train_a --data-root PLACE",
    "data inspect tree.swc --picture PLACE.svg",
    "lap generate --sizes 4 --out PLACE",
    "lap import x.npy --out PLACE",
    "lap merge x.h5 --out PLACE",
    "lap bucket x.h5 --out PLACE",
    "lap solve x.npy --out PLACE.csv",
    "lap analyze --json PLACE",
    "image build cpu --out PLACE",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_below_a_file_is_refused_in_one_line(
    tmp_path: Path, kdgat: Callable[..., Answer], command: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "tree.swc").write_text("1 2 0 0 0 1 -1\n")
    before = sorted(tmp_path.rglob("*"))
    answer = kdgat(*command.replace("PLACE", "file/below").split(), folder=tmp_path)
    assert answer.status in (1, 2)
    assert answer.stderr.startswith("error: --")
    assert answer.stderr.count("\n") == 1
    assert "so nothing can be made below it: choose another path" in answer.stderr
    assert sorted(tmp_path.rglob("*")) == before
