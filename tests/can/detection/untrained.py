"""Networks with random weights on real windows: what an exported one says is compared with what torch says."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kdgat.can.data.pool import PooledStores
from kdgat.can.detection.loading import GraphDetector
from kdgat.can.detection.model_file import DetectorParameters, FileFormat, write_model
from kdgat.can.evaluation.calibration import DecisionRule
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.scaling import Scaling
from kdgat.can.models.scoring import describe_model, fit_standardisation
from kdgat.can.sections import AttentionConfig
from kdgat.canbus import Messages, WindowConfig, make_vehicle, simulate, windows_to_graphs
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES
from kdgat.graphs import GraphColumns

WINDOWS = WindowConfig()


@cache
def drive(attack: str | None = "malfunction", seed: int = 3, duration_s: float = 8.0) -> Messages:
    """Simulate a drive of one vehicle; the attack is in its second half."""
    return simulate(make_vehicle(seed), duration_s, attack, seed=seed)


@dataclass(frozen=True)
class Untrained:
    """A network with fitted standardisation, and what a file of it holds."""

    model: GraphAttentionNetwork
    pool: PooledStores
    description: dict[str, Any]

    @property
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights as arrays."""
        return {name: tensor.numpy() for name, tensor in self.model.state_dict().items()}

    def logits(self, graphs: GraphColumns) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what torch says of windows and nodes."""
        batch = PooledStores([graphs]).gather(np.arange(graphs.num_graphs))
        with torch.inference_mode():
            output = self.model(batch)
        return output.window_logit.numpy(), output.node_logit.numpy()

    def write(self, path: Path, file_format: FileFormat = "onnx", threshold: float | None = None) -> Path:
        """Export it; by default a fifth of the windows of `drive` are alarms."""
        if threshold is None:
            threshold = float(np.quantile(self.logits(windows_to_graphs(drive(), WINDOWS))[0], 0.8)) / 2.0
        parameters = DetectorParameters(
            name="distill_gat", windows=WINDOWS, scaling=Scaling(temperature=2.0), threshold=threshold
        )
        write_model(path, file_format, self.weights, self.description, parameters)
        return path


def untrained(config: AttentionConfig, seed: int = 0) -> Untrained:
    """Draw a network's weights; its standardisation is that of a simulated drive."""
    torch.manual_seed(seed)
    pool = PooledStores([windows_to_graphs(drive(None), WINDOWS)], features=(NODE_FEATURES, EDGE_FEATURES))
    model = GraphAttentionNetwork(config, pool.num_node_features, pool.num_edge_features).eval()
    for name, parameter in model.named_parameters():  # biases begin at zero, which would hide a forgotten one
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
    fit_standardisation(model, pool, np.ones(pool.num_graphs, np.bool_))
    return Untrained(model, pool, describe_model(model, pool))


def at(detector: GraphDetector, threshold: float) -> GraphDetector:
    """Return a detector at another threshold of its networks, a calibrated logit, with the habits beside them."""
    rule = DecisionRule.of_budget(threshold, habits=True)
    return replace(detector, detector=replace(detector.detector, rule=rule))


def in_chunks(messages: Messages, size: int) -> Iterator[Messages]:
    """Yield a recording in pieces."""
    for start in range(0, len(messages), size):
        yield messages.select(slice(start, start + size))
