"""What a Python says of its torch, and the labels of an image that come of it."""

import json
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch

from kdgat.container import probe

VOLTA = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"  # of torch 2.10.0 on PyPI


def built(monkeypatch: pytest.MonkeyPatch, cuda: str, flags: str, *, has_rapids: bool = False) -> dict[str, Any]:
    """Describe a torch that is built for a CUDA and these architectures."""
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch._C, "_cuda_getArchFlags", lambda: flags, raising=False)
    monkeypatch.setattr(util, "find_spec", lambda name: object() if has_rapids else None)
    return probe.describe_torch()


def test_an_image_says_what_its_torch_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = built(monkeypatch, "12.8", VOLTA, has_rapids=True)
    assert probe.labels_of(found) == [f"kdgat.gpu.architectures {VOLTA}", "kdgat.gpu.driver 535"]


@pytest.mark.parametrize(("cuda", "driver"), [("11.8", 450), ("12.8", 525), ("13.0", 580), ("14.0", 0)])
def test_the_least_driver_follows_from_the_major_version_of_cuda(
    cuda: str, driver: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert built(monkeypatch, cuda, VOLTA)["driver"] == driver


@pytest.mark.processes
@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built with CUDA")
def test_the_text_alone_answers_in_another_python_and_a_build_without_cuda_gets_no_labels() -> None:
    text = Path(probe.__file__).read_text()
    answers = [
        subprocess.run([sys.executable, "-I", "-c", text, word], capture_output=True, text=True, check=True).stdout
        for word in ("torch", "labels")
    ]
    assert json.loads(answers[0])["torch"] == torch.__version__
    assert json.loads(answers[0])["architectures"] == []
    assert answers[1] == ""
