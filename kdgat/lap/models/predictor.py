"""A trained network as a function of cost matrices: duals for the seeded solver, fast on one CPU core."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kdgat.base import UserError, validate_config
from kdgat.graphs import TensorColumns
from kdgat.lap.graphs.bipartite import Neighbours, find_neighbours, graph_of
from kdgat.lap.graphs.lists import neighbour_lists
from kdgat.lap.models import make_model
from kdgat.lap.models.dual import DualNetwork
from kdgat.lap.names import FAMILY
from kdgat.lap.sections import FEATURE_VERSION, GraphConfig, ModelConfig
from kdgat.training import load_weights


@dataclass(frozen=True, eq=False)
class Prediction:
    """Hold predicted duals, in the units of the cost matrix; not feasible yet: the solver makes them so."""

    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [m]
    seconds: dict[str, float]  # phase -> wall time: neighbours, network


class Predictor:
    """Hold a network and the graph that it reads."""

    def __init__(self, model: nn.Module, graph: GraphConfig, description: dict[str, Any] | None = None) -> None:
        from kdgat.lap.models.inference import CompiledNetwork  # compiled code: only who predicts waits for it

        self.model = model.eval()
        self.graph = graph
        self.description = description or {}
        self.compiled = CompiledNetwork(model) if isinstance(model, DualNetwork) else None

    def untrained(self) -> Predictor:
        """Return the same form of network as it is before training."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Predictor(make_model(validate_config(ModelConfig, self.description["model"])), self.graph)

    @classmethod
    def load(cls, path: Path | str) -> Predictor:
        """Load weights that a training stage wrote.

        Raises:
            WeightsError: if they are missing or damaged.
            UserError: if they are of another family, or of graphs that this version does not make.
        """
        weights, description = load_weights(path)
        if description.get("family") != FAMILY:
            raise UserError(
                f"{path}: family is {description.get('family')!r}, not {FAMILY!r}: give weights of a LAP run"
            )
        if description.get("feature_version") != FEATURE_VERSION:
            raise UserError(
                f"{path}: feature_version is {description.get('feature_version')}, this kdgat makes {FEATURE_VERSION}: "
                "train again, or use the version that trained it"
            )
        model = make_model(validate_config(ModelConfig, description["model"]))
        model.load_state_dict(weights)
        return cls(model, validate_config(GraphConfig, description["graph"]), description)

    def predict(self, cost: NDArray[np.floating], mask: NDArray[np.bool_] | None = None) -> Prediction:
        """Predict duals of a cost matrix [n, m], finite where allowed; mask [n, m] True = forbidden."""
        num_rows, num_columns = cost.shape
        if num_rows > num_columns:
            turned = self.predict(cost.T, None if mask is None else mask.T)
            return Prediction(turned.v, turned.u, turned.seconds)
        started = time.perf_counter()
        found = find_neighbours(np.ascontiguousarray(cost), mask, self.graph)
        between = time.perf_counter()
        u, v = found.scaling.restore(*self._normalised_duals(found))
        seconds = {"neighbours": between - started, "network": time.perf_counter() - between}
        return Prediction(u, v, seconds)

    def _normalised_duals(self, found: Neighbours) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if self.compiled is not None:
            return self.compiled(found)
        batch = TensorColumns.from_columns(graph_of(found, None, None, self.graph)).gather(np.zeros(1, np.int64))
        with torch.no_grad():
            duals = self.model(neighbour_lists(batch))[-1]
        return duals.u.numpy(), duals.v.numpy()
