"""Attention by kernels of Triton: in its interpreter, and compiled for GPUs that are not here."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kdgat.can.models.attention_triton import arrange_on_device, can_attend, is_usable

REPOSITORY = Path(__file__).parents[3]
CAPABILITIES = (70, 75, 80, 86, 90, 100, 120)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run(module: str, cache: Path, *words: str, **environment: str) -> str:
    """Run a module of the tests in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", f"tests.can.models.{module}", *words]
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = {**kept, "TRITON_CACHE_DIR": str(cache), **environment}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_triton
@pytest.mark.processes
def test_interpreted_kernels_say_what_gather_and_scatter_say(tmp_path: Path) -> None:
    run("interpreted_kernels", tmp_path, TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.processes
def test_kernels_compile_for_every_gpu_without_atomics_and_stay_in_registers(tmp_path: Path) -> None:
    asked = [[CAPABILITIES, ["fp32"], [[8, 48]]], [[70, 90], ["fp16"], [[8, 48]]], [[80], ["bf16"], [[1, 64]]]]
    for words in asked:
        for found in json.loads(run("compiled_kernels", tmp_path, json.dumps(words))):
            assert found["atomics"] == 0, found
            assert found["local"] == 0, found
            assert found["stack"] <= 8, (
                found
            )  # ptxas keeps 4 bytes of one kernel in memory for sm_90, of its own accord
            assert found["reg"] <= 128, found


def test_edges_out_of_order_are_arranged_by_target_and_by_source() -> None:
    edge_index = torch.tensor([[0, 3, 1, 0, 2], [2, 1, 2, 0, 1]])
    edges = arrange_on_device(edge_index, 5)
    assert edges.order.tolist() == [3, 1, 4, 0, 2]  # stable
    assert edges.source.tolist() == [0, 3, 2, 0, 1]
    assert edges.target.tolist() == [0, 1, 1, 2, 2]
    assert edges.ptr.tolist() == [0, 1, 3, 5, 5, 5]
    assert edges.by_source.tolist() == [0, 3, 4, 2, 1]
    assert edges.source_ptr.tolist() == [0, 2, 3, 4, 5, 5]
    sorted_values = edges.sort(torch.arange(5))
    assert sorted_values is not None
    assert torch.equal(sorted_values, edges.order)


def test_batches_without_edges_are_arranged() -> None:
    edges = arrange_on_device(torch.zeros(2, 0, dtype=torch.int64), 3)
    assert edges.ptr.tolist() == edges.source_ptr.tolist() == [0, 0, 0, 0]


def test_a_cpu_is_no_device_for_kernels_and_asking_loads_nothing() -> None:
    assert not is_usable(torch.device("cpu"))


def test_rows_too_long_for_registers_and_double_precision_are_left_to_torch() -> None:
    assert can_attend(torch.zeros(1, 8 * 48), 8)
    assert not can_attend(torch.zeros(1, 8 * 48, dtype=torch.float64), 8)
    assert not can_attend(torch.zeros(1, 8 * 2048), 8)
