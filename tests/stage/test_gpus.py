"""Which GPUs there are is known without torch."""

import os
from pathlib import Path

import pytest

from kdgat.stage import gpus
from kdgat.stage.gpus import num_given_gpus, visible_gpus

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
