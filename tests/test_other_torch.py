"""The frame and the models on the torch of the GPU image, which is older than the pinned one."""

import re
import subprocess
from pathlib import Path

import pytest

from kdgat.container.variants import VARIANTS
from tests.support.installing import ROOT, make_install, outside_of_make

TESTS = ("training", "stage", "graphs", "can/models", "can/training", "lap/models", "trees/models")


@pytest.mark.nightly
@pytest.mark.processes
def test_frame_and_models_pass_on_the_torch_of_the_gpu_image(tmp_path: Path) -> None:
    (version,) = [line.partition("==")[2] for line in VARIANTS["gpu"].requirements if line.startswith("torch==")]
    venv = tmp_path / "venv"
    installed = make_install(venv, f"TORCH={version}")
    assert installed.returncode == 0, installed.stderr
    python = venv / "bin" / "python"
    asked = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    assert asked.stdout.partition("+")[0].strip() == version
    chosen = "not processes and not slurm and not prefect and not image and not nightly"
    command = [python, "-m", "pytest", "-q", "--numprocesses=2", "-m", chosen, *(f"tests/{name}" for name in TESTS)]
    done = subprocess.run(command, cwd=ROOT, env=outside_of_make(), capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 600
