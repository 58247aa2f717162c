"""The examples of the page about CAN logs are true: they run as printed, one after the other."""

import re
from pathlib import Path
from typing import Any

import pytest

from docs.tutorials.drives import write_candump
from kdgat.canbus import make_vehicle, simulate

PAGE = Path(__file__).parents[2] / "docs" / "canbus.md"


def test_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    drive = simulate(make_vehicle(5), 20.0, seed=1)
    write_candump(tmp_path / "drive.log", drive)
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(example, names)
    read, graphs, live, injected = capsys.readouterr().out.splitlines()
    assert read.startswith(f"{len(drive)} messages in ")
    assert graphs.startswith(f"{len(drive) // 100} windows; ")
    assert live == "8 messages, 2 windows"
    assert re.match(r"\d+ injected messages: (fuzzing|masquerade): ", injected)
    assert (tmp_path / "attacked" / "train_virtual__one.parquet").is_file()
