"""A stage computes where it was told to, or says why it cannot.

No CUDA device is at hand where these tests run: what torch says about one is set, what follows from it is real.
"""

import os
import subprocess
import sys

import pytest
import torch

from kdgat.base import ConfigurationError
from kdgat.stage import EnvironmentFaultError, RunDirectory
from kdgat.training import TrainingConfig
from kdgat.training.device import choose_device, describe_machine, make_fabric
from tests.training.graph_training import train

CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.fixture
def without_gpu(monkeypatch):
    """Be a build with CUDA on a machine whose driver shows nothing, as where `--nv` was forgotten."""

    def fail() -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", fail)


@pytest.fixture
def with_v100(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tesla V100-SXM2-16GB")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: CU130)


@pytest.mark.parametrize("accelerator", ["auto", "gpu", "cuda"])
@pytest.mark.parametrize("choose", [choose_device, lambda name: make_fabric(TrainingConfig(accelerator=name))])
def test_a_job_that_was_given_a_gpu_and_sees_none_is_on_a_broken_node(without_gpu, monkeypatch, accelerator, choose):
    monkeypatch.setenv("KDGAT_GPUS", "1")
    with pytest.raises(EnvironmentFaultError, match=r"given a GPU and torch sees none: Found no NVIDIA driver"):
        choose(accelerator)


def test_training_does_not_begin_there(without_gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("KDGAT_GPUS", "1")
    with pytest.raises(EnvironmentFaultError):
        train(RunDirectory(tmp_path))


def test_a_gpu_for_a_torch_that_is_built_without_cuda_is_a_mistake_on_any_node(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("KDGAT_GPUS", "1")
    with pytest.raises(ConfigurationError, match="is built without CUDA: install a build with it, or ask for no GPU"):
        choose_device("auto")


def test_a_gpu_that_nobody_gave_is_a_mistake_in_the_configuration(without_gpu):
    with pytest.raises(ConfigurationError, match=r"training\.accelerator=cuda and torch sees none"):
        choose_device("cuda")
    assert choose_device("auto").type == "cpu"


def test_tf32_without_a_gpu_is_refused_and_nothing_is_switched(without_gpu):
    with pytest.raises(ConfigurationError, match=r"training\.precision=tf32 needs a GPU and there is none: use bf16"):
        make_fabric(TrainingConfig(precision="tf32"))
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_gpu_of_apple_that_is_not_there_is_refused_by_its_key():
    with pytest.raises(ConfigurationError, match=r"^training\.accelerator=mps .*: set training\.accelerator=auto$"):
        make_fabric(TrainingConfig(accelerator="mps"))


def test_cpu_means_cpu_whatever_there_is(with_v100, monkeypatch):
    monkeypatch.setenv("KDGAT_GPUS", "1")
    assert choose_device("cpu").type == "cpu"
    assert make_fabric(TrainingConfig(accelerator="cpu")).device.type == "cpu"


@pytest.mark.parametrize(("given", "error"), [("1", EnvironmentFaultError), ("0", ConfigurationError)])
def test_a_gpu_without_kernels_is_named_with_what_torch_was_built_for(with_v100, monkeypatch, given, error):
    monkeypatch.setenv("KDGAT_GPUS", given)
    with pytest.raises(error, match=r"no kernels for Tesla V100-SXM2-16GB \(capability 7.0; it has sm_75,"):
        choose_device("auto")


def test_a_machine_is_described_by_what_last_bits_depend_on():
    found = describe_machine(torch.device("cpu"))
    assert found == {"torch": torch.__version__, "cpu": torch.backends.cpu.get_cpu_capability(), "device": "cpu"}


@pytest.mark.processes
def test_the_instruction_set_that_torch_is_told_to_use_is_part_of_it():
    program = (
        "import torch; from kdgat.training import device; print(device.describe_machine(torch.device('cpu'))['cpu'])"
    )
    command, environment = [sys.executable, "-c", program], {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("DEFAULT", "NO AVX")
