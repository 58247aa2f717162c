"""How busy a GPU is, as the driver's tool says; here a script in its place, for this machine has no GPU."""

import logging
import time
from pathlib import Path

import pytest

from kdgat.stage import utilisation
from kdgat.stage.provenance import GPUS_VARIABLE
from kdgat.stage.utilisation import gpu_sampled
from kdgat.stage.work import Work

ONE_GPU = {GPUS_VARIABLE: "1"}


@pytest.fixture(autouse=True)
def a_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilisation, "visible_gpus", lambda environment: ("GPU-7",))


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return path


def write(tool: Path, text: str) -> None:
    tool.write_text(f"#!/bin/sh\n{text}\n")
    tool.chmod(0o755)


def wait_for(tool: Path) -> None:
    until = time.monotonic() + 20
    while not (tool.parent / "said").exists() and time.monotonic() < until:
        time.sleep(0.01)


def test_the_mean_of_what_the_tool_says_is_noted_and_the_tool_is_ended(tool: Path) -> None:
    write(
        tool, f'echo "$@" > {tool.parent}/words\nprintf "80\\n20\\n[N/A]\\n"\ntouch {tool.parent}/said\nexec sleep 600'
    )
    work = Work()
    with gpu_sampled(work, ONE_GPU):
        wait_for(tool)
    assert work.gpu_busy == 0.5
    assert "--id=GPU-7" in (tool.parent / "words").read_text()


def test_a_stage_without_a_gpu_asks_nobody(tool: Path) -> None:
    write(tool, f"touch {tool.parent}/said")
    with gpu_sampled(Work(), {GPUS_VARIABLE: "0"}):
        pass
    assert not (tool.parent / "said").exists()


@pytest.mark.parametrize("text", ['echo "[N/A]"', "exit 9"])
def test_where_nobody_knows_the_log_says_so(tool: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    write(tool, text)
    work = Work()
    with caplog.at_level(logging.INFO), gpu_sampled(work, ONE_GPU):
        pass
    assert work.gpu_busy is None
    assert "how busy the GPU was is not known" in caplog.text


def test_without_the_tool_the_stage_runs_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.INFO), gpu_sampled(Work(), ONE_GPU):
        pass
    assert "nvidia-smi cannot be started" in caplog.text
