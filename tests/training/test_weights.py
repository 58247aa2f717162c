"""Weights carry their configuration, and are refused when missing, damaged or foreign."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from kdgat.stage import RunDirectory
from kdgat.training import load_weights
from kdgat.training.weights import METADATA_KEY, WeightsError, read_arrays, read_description, read_weights, save_weights

CONFIG = {"widths": [4, 2], "heads": 2, "name": "small"}


def save(path):
    path.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))
    save_weights(RunDirectory(path), model, CONFIG, {"monitor": "validation_loss", "best_epoch": 3})
    return model


def test_weights_and_config_come_back_from_directory_and_file(tmp_path):
    model = save(tmp_path)
    for source in (tmp_path, RunDirectory(tmp_path), tmp_path / "weights.safetensors", str(tmp_path)):
        tensors, config = load_weights(source)
        assert config == CONFIG
        assert tensors.keys() == model.state_dict().keys()
        assert all(torch.equal(tensors[name], value) for name, value in model.state_dict().items())
    _, description = read_weights(tmp_path)
    assert description == {"config": CONFIG, "monitor": "validation_loss", "best_epoch": 3}
    assert json.loads((tmp_path / "model.json").read_text()) == description


def test_equal_weights_are_equal_files(tmp_path):
    save(tmp_path / "a")
    save(tmp_path / "b")
    assert (
        RunDirectory(tmp_path / "a").weights_path.read_bytes() == RunDirectory(tmp_path / "b").weights_path.read_bytes()
    )


def test_missing_weights_say_what_to_run(tmp_path):
    with pytest.raises(WeightsError, match=r"weights.safetensors does not exist: run the stage"):
        load_weights(tmp_path)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    save(tmp_path)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(WeightsError, match="damaged"):
        load_weights(path)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(WeightsError, match="not written by kdgat"):
        load_weights(path)


@pytest.mark.parametrize("description", ["{", "[]", "{}", '{"config": 3}', "null"])
def test_a_damaged_description_is_no_traceback(tmp_path, description):
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.ones(2)}, path, {METADATA_KEY: description})
    for read in (read_description, read_arrays, read_weights):
        with pytest.raises(WeightsError, match=r"is damaged|was not written by kdgat"):
            read(path)
