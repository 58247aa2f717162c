"""Which GPUs there are, and how busy one is, is known without torch; a script stands in for the driver's tool."""

import logging
import os
import time
from pathlib import Path

import pytest

from kdgat.stage import Work, gpus
from kdgat.stage.gpus import Card, cards_of, gpu_sampled, has_kernels, list_cards, num_given_gpus, visible_gpus
from kdgat.stage.provenance import GPUS_VARIABLE

LISTING = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 1g.5gb      Device  0: (UUID: MIG-8f5c)
  MIG 1g.5gb      Device  1: (UUID: MIG-91aa)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-0e3a)
"""


@pytest.fixture(autouse=True)
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "package_version", lambda name: "2.13.0")


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir()
    (tmp_path / "listing").write_text(LISTING)
    path.write_text(f'#!/bin/sh\n[ "$*" = -L ] && cat {tmp_path}/listing\n')
    path.chmod(0o700)
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    return path


@pytest.mark.parametrize(
    ("stated", "expected"), [("0,1", ("0", "1")), ("GPU-1", ("GPU-1",)), ("", ()), ("-1", ()), ("1, -1,0", ("1",))]
)
def test_what_cuda_is_told_to_see_counts(stated: str, expected: tuple[str, ...], nvidia_smi: Path) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": stated}) == expected


def test_else_nvidia_smi_lists_gpus_and_the_instances_of_those_that_are_cut(nvidia_smi: Path) -> None:
    assert visible_gpus({}) == ("MIG-8f5c", "MIG-91aa", "GPU-0e3a")


def test_without_nvidia_smi_the_driver_knows_how_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert visible_gpus({}, tmp_path / "gpus") == ()
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert visible_gpus({}, tmp_path / "gpus") == ("0", "1")


def test_a_torch_without_cuda_takes_none(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "package_version", lambda name: "2.13.0+cpu")
    assert visible_gpus({}) == visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


@pytest.mark.parametrize(("text", "number"), [(None, 0), ("", 0), ("0", 0), ("1", 1), ("2", 2)])
def test_a_job_says_how_many_gpus_it_was_given(text: str | None, number: int) -> None:
    assert num_given_gpus({} if text is None else {"KDGAT_GPUS": text}) == number


ONE_GPU = {GPUS_VARIABLE: "1", "CUDA_VISIBLE_DEVICES": "GPU-7"}


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


CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("capability", "architectures", "expected"),
    [
        ((7, 0), CU130, False),
        ((7, 5), CU130, True),
        ((8, 9), CU130, True),  # binaries of 8.6 run on it
        ((9, 0), CU130, True),
        ((10, 3), CU130, True),
        ((11, 0), CU130, False),  # another major number, and the PTX is newer
        ((12, 1), CU130, True),
        ((13, 0), CU130, True),  # by PTX
        ((7, 0), ["sm_50", "sm_60", "sm_70", "sm_75"], True),
        ((8, 0), ["sm_90a"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 1), ["sm_100a", "sm_100f"], True),
        ((9, 0), ["gfx90a"], False),
        ((9, 0), [], False),
    ],
)
def test_which_builds_run_on_which_gpus(capability: tuple[int, int], architectures: list[str], expected: bool) -> None:
    assert has_kernels(capability, architectures) is expected


def test_cards_are_read_from_what_the_drivers_tool_prints() -> None:
    v100, h100 = "Tesla V100-SXM2-32GB, 7.0, 535.183.01", "NVIDIA H100 80GB HBM3, 9.0, 580.159"
    assert cards_of(f"{v100}\n{h100}\n") == (
        Card("Tesla V100-SXM2-32GB", (7, 0), "535.183.01"),
        Card("NVIDIA H100 80GB HBM3", (9, 0), "580.159"),
    )
    for other in (
        "No devices were found\n",
        'Field "compute_cap" is not a valid field to query.\n',
        "A, [N/A], 470.1\n",
    ):
        assert cards_of(other) == ()


def test_without_the_drivers_tool_there_are_no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    assert list_cards() == ()
