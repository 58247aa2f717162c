"""Tutorials do what they say, given as printed in a fresh clone."""

import json
import re
from pathlib import Path

from kdgat.run import OutputDirectory, StageState
from tests.support.servers import PrefectServer
from tests.support.tutorial import PAGES, ROOT, commands, follow, fresh_clone


def test_from_a_log_to_alarms(tmp_path: Path, prefect_server: PrefectServer) -> None:
    """With the tests' Prefect server, which a person's command starts by itself."""
    followed = follow(commands("alarms.md"), fresh_clone(tmp_path / "kdgat"))
    detect = "kdgat detect logs/suspicious.log"
    export = "--format json --out alarms.json --picture alarms.html"
    assert followed.failed == [  # 3 is an alarm
        (3, detect), (3, f"{detect} --model mycar.onnx"), (3, f"{detect} --model mycar.onnx {export}"),
    ], followed.output  # fmt: skip
    (shown,) = re.findall(r"```text\n(.*?)\n```", (PAGES / "alarms.md").read_text(encoding="utf-8"), re.DOTALL)
    assert all(line in followed.output for line in shown.splitlines()), followed.output
    stages = OutputDirectory(followed.folder / "runs" / "mycar").read_index().stages
    assert {record.state for record in stages} == {StageState.FINISHED}
    alarms = [json.loads(line) for line in (followed.folder / "alarms.json").read_text().splitlines()]
    assert {"08B", "4D7"} <= {one["id"] for alarm in alarms for one in alarm["identifiers"]}
    assert any("network" in alarm["by"] for alarm in alarms)
    picture = (followed.folder / "alarms.html").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in picture  # drawn in the page itself, no server is asked
    assert "08B" in picture


def test_a_family_of_your_own(tmp_path: Path, prefect_server: PrefectServer) -> None:
    followed = follow(commands("family.md"), fresh_clone(tmp_path / "kdgat"))
    assert followed.failed == [(1, "kdgat plan lines -O data.point=32")], followed.output
    page = (PAGES / "family.md").read_text(encoding="utf-8")
    (mistake,) = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    assert mistake in followed.output
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    toy = (ROOT / "tests" / "toy" / "toy_family" / "family.py").read_text(encoding="utf-8")
    assert shown in toy.replace("toy_family", "lines")
    states = {
        record.name: record.state for record in OutputDirectory(followed.folder / "runs" / "lines").read_index().stages
    }
    assert states == {
        "prepare": StageState.CACHED, "line-seed0": StageState.FINISHED, "evaluation-seed0": StageState.FINISHED,
    }  # fmt: skip
    assert re.search(r"^evaluation-seed0 .*error", followed.output, re.MULTILINE), followed.output
