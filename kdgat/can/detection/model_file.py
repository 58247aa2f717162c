"""A detector in one file: an ONNX model, or a file of torch, with all that is needed to decide about traffic."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kdgat.base import Config, UserError, write_bytes_atomically
from kdgat.base.kept import read_kept
from kdgat.can.models.runtime import Network
from kdgat.can.models.scaling import Scaling
from kdgat.canbus import WindowConfig
from kdgat.canbus.features import EDGE_FEATURES, FEATURE_VERSION, NODE_FEATURES

FileFormat = Literal["onnx", "torch"]
METADATA_KEY: Final = "kdgat"
ZIP_MAGIC: Final = b"PK"  # of torch's files

Weights = Mapping[str, NDArray[np.float32]]


class DetectorParameters(Config):
    """What a network needs beside its weights to decide about traffic."""

    format_version: Literal[1] = 1
    name: str = Field(description="the model, as in the run: distill_gat")
    seed: int = 0
    dataset: str = Field("", description="that it was trained on")
    feature_version: int = FEATURE_VERSION
    node_features: tuple[str, ...] = NODE_FEATURES
    edge_features: tuple[str, ...] = EDGE_FEATURES
    windows: WindowConfig = WindowConfig()
    scaling: Scaling = Field(Scaling(), description="raw logits / temperature + bias are calibrated ones")
    threshold: float = Field(0.0, allow_inf_nan=False, description="calibrated logit from which a window is an alarm")
    habits: bool = Field(True, description="the habits of identifiers raise alarms, too")
    weights: str = Field("", description="SHA-256 of the weights in the run, by which a calibration knows them")

    def check_features(self, source: str) -> None:
        """Raise UserError unless this kdgat computes the features that the network was trained on."""
        if self.feature_version != FEATURE_VERSION:
            raise UserError(
                f"{source}: trained on features of version {self.feature_version}, this kdgat computes version "
                f"{FEATURE_VERSION}: train again, or use the kdgat that trained it"
            )
        if (self.node_features, self.edge_features) != (NODE_FEATURES, EDGE_FEATURES):
            raise UserError(f"{source}: trained on other features than this kdgat computes: train again")

    def as_properties(self) -> dict[str, str]:
        """Return the metadata of an ONNX file: all of it as JSON, and what others need to use the file by itself."""
        return {
            METADATA_KEY: self.model_dump_json(),
            "feature_version": str(self.feature_version),
            "node_features": ",".join(self.node_features),
            "edge_features": ",".join(self.edge_features),
            "window_size": str(self.windows.size),
            "window_stride": str(self.windows.stride),
            "temperature": repr(self.scaling.temperature),
            "bias": repr(self.scaling.bias),
            "threshold_logit": repr(self.threshold),
            "habits": str(self.habits).lower(),
        }


@dataclass(frozen=True)
class ModelFile:
    """What was read from a file."""

    parameters: DetectorParameters
    network: Network


def onnx_bytes(weights: Weights, description: Mapping[str, Any], parameters: DetectorParameters) -> bytes:
    """Return a network as the content of an ONNX file; UserError for one that has no such form."""
    from kdgat.can.models.onnx_graph import attention_graph  # an exported file is read without onnx

    return attention_graph(weights, description, parameters.as_properties()).SerializeToString()


def write_model(
    path: Path,
    file_format: FileFormat,
    weights: Weights,
    description: Mapping[str, Any],
    parameters: DetectorParameters,
) -> None:
    """Write a detector; errors of `onnx_bytes`.

    A file of torch is read by `torch.load(path, weights_only=True)`: a dictionary of `state_dict`, `config` and
    `parameters`, the last two as JSON.
    """
    content = onnx_bytes(weights, description, parameters)  # refuses the same models for either format
    if file_format == "torch":
        import torch

        buffer = io.BytesIO()
        torch.save(
            {
                "state_dict": {name: torch.from_numpy(np.array(value)) for name, value in weights.items()},
                "config": json.dumps(dict(description)),
                "parameters": parameters.model_dump_json(),
            },
            buffer,
        )
        content = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomically(path, content)


def read_model(path: Path) -> ModelFile:
    """Read a detector; UserError names a file that is none, or one of other features."""
    with path.open("rb") as file:
        is_torch = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
    network = Network(_onnx_of_torch(path)) if is_torch else Network(path)
    text = network.metadata.get(METADATA_KEY)
    if text is None:
        raise UserError(f"{path} was not written by `kdgat model export`: it says nothing about features and threshold")
    parameters = _parameters(path, text)
    parameters.check_features(str(path))
    return ModelFile(parameters, network)


def _onnx_of_torch(path: Path) -> bytes:
    import pickle

    import torch

    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
        weights = {name: tensor.numpy() for name, tensor in content["state_dict"].items()}
        return onnx_bytes(weights, json.loads(content["config"]), _parameters(path, content["parameters"]))
    except (KeyError, TypeError, AttributeError, RuntimeError, pickle.UnpicklingError, json.JSONDecodeError) as error:
        raise UserError(
            f"{path} was not written by `kdgat model export` ({error}): export the model again, or train one by "
            "`kdgat train can`, because checkpoints of other programs are not taken over"
        ) from error


def _parameters(path: Path, text: str) -> DetectorParameters:
    return read_kept(DetectorParameters, text, path, "export the model again", key="format_version")


__all__ = [
    "DetectorParameters",
    "FileFormat",
    "ModelFile",
    "UserError",
    "read_model",
    "write_model",
]
