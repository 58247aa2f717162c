"""Without a GPU nothing is recorded of its memory, which is said; with one: tests/pretended_cuda/test_memory.py."""

import logging

import pytest
import torch

from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig
from kdgat.training.gpu_memory import memory_watched


def test_without_a_gpu_a_snapshot_is_a_warning_and_no_file(tmp_path, caplog):
    config = TrainingConfig(memory_snapshot=True)
    with (
        caplog.at_level(logging.WARNING),
        memory_watched(config, RunDirectory(tmp_path), "", torch.device("cpu"), is_first=True),
    ):
        pass
    assert "training.memory_snapshot=true changes nothing: there is no GPU" in caplog.text
    assert not list(tmp_path.iterdir())


def test_an_error_without_a_gpu_says_nothing_of_one(tmp_path):
    error = torch.OutOfMemoryError("as a test says")
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        memory_watched(TrainingConfig(), RunDirectory(tmp_path), "", torch.device("cpu"), is_first=True),
    ):
        raise error
    assert not hasattr(caught.value, "__notes__")
