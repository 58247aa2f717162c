"""The commands of docs/detect.md do what it says, in its order, on logs that candump could have written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from kdgat.canbus import Messages, make_vehicle, simulate
from tests.can.small_runs import make_config, train_here
from tests.support.command_line import kdgat

PAGE = Path(__file__).parents[3] / "docs" / "detect.md"
SMALL = (
    "stages=[normal, distill_gat, evaluation]",
    "injection.variants=6",
    "injection.duration_s=[5, 8]",
    "training.max_epochs=1",
    "gat.large.hidden=4",
    "gat.large.heads=2",
    "sampling.graphs_per_epoch=256",
)


def _commands() -> list[list[str]]:
    """List the commands of the tutorial, words of each."""
    section = PAGE.read_text(encoding="utf-8").split("## Output")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if " | " not in line]  # a pipe never ends


def _write_candump(path: Path, messages: Messages) -> None:
    columns = (messages.timestamp, messages.identifier.tolist(), messages.payload, messages.length.tolist())
    path.write_text(
        "".join(
            f"({now:.6f}) can0 {one:03X}#{bytes(data[:length]).hex().upper()}\n"
            for now, one, data, length in zip(*columns, strict=True)
        )
    )


def test_from_a_candump_file_to_alarms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training is that of `kdgat train can`, in this process and in small; what never ends is tested elsewhere."""
    commands = _commands()
    assert len(commands) <= 10
    monkeypatch.chdir(tmp_path)
    vehicle = make_vehicle(5)
    _write_candump(tmp_path / "drive.log", simulate(vehicle, 40.0, seed=1))
    _write_candump(tmp_path / "drive-2.log", simulate(vehicle, 110.0, seed=2))
    _write_candump(tmp_path / "suspicious.log", simulate(vehicle, 30.0, "malfunction", seed=3))
    statuses = []
    for program, *words in commands:
        assert program == "kdgat"
        if words[:2] == ["train", "can"]:
            assert words[2:] == ["--dataset", "mycar", "--data-root", "data", "--out", "runs/mycar"]
            config = make_config(
                "quick", SMALL, data={"dataset": "mycar", "data_root": str(tmp_path / "data")}, seeds=[0]
            )
            train_here(tmp_path / "runs" / "mycar", config)
        elif "--follow" in words or "-i" in words:
            assert words[-2:] == ["--model", "mycar.onnx"]
        else:
            answer = kdgat(*words)
            assert answer.status == (3 if words[0] == "detect" else 0), answer.stderr
            statuses.append(answer.status)
    assert statuses == [3, 0, 0, 0, 3, 3]
    alarms = [json.loads(line) for line in (tmp_path / "alarms.json").read_text().splitlines()]
    assert any("too early" in one["reasons"] for alarm in alarms for one in alarm["identifiers"])
    assert "Plotly.newPlot" in (tmp_path / "alarms.html").read_text(encoding="utf-8")
