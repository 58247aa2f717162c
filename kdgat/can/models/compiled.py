"""An attention network as matrix products of ONNX Runtime and kernels between them.

The function of `attention_graph`, to the rounding of float32, in three quarters of its time: no array as long as the
edges and as wide as a layer is made, moved and read again. The products stay with ONNX Runtime, which uses wider
vectors on some processors than numpy's library does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from kdgat.base import validate_config
from kdgat.can.models.onnx_graph import Weights, folded_attention, product_graph
from kdgat.can.sections import AttentionConfig

Rows = NDArray[np.float32]


def is_compilable(description: Mapping[str, Any]) -> bool:
    """Return whether a network, as `describe_model` says it, is of the kind that kernels are written for."""
    config = validate_config(AttentionConfig, description["model"])
    return config.conv_type == "gat" and config.activation == "relu" and not config.id_embedding


class CompiledAttention:
    """Compute the logits of windows; in place of a session of ONNX Runtime with `attention_graph`."""

    def __init__(self, weights: Weights, description: Mapping[str, Any], options: onnxruntime.SessionOptions) -> None:
        """Prepare the weights of a network that `is_compilable`."""
        from kdgat.can.models import attention_kernels  # numba: whoever starts other processes loads it behind that

        self._kernels = attention_kernels
        self._config = config = validate_config(AttentionConfig, description["model"])
        self._weights = {name: np.ascontiguousarray(value) for name, value in weights.items()}
        self._width = config.hidden * config.heads
        self._session = onnxruntime.InferenceSession(
            product_graph().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        names = [f"convolutions.{layer}" for layer in range(config.layers)]
        self._columns = [self._columns_of(layer, name) for layer, name in enumerate(names)]
        of_edges = [folded_attention(weights, name, "lin_edge", "att_edge") for name in names if config.edge_features]
        self._of_edges = np.ascontiguousarray(np.concatenate(of_edges).T) if of_edges else None
        self._linear = {
            name: np.ascontiguousarray(weights[f"{name}.weight"].T)
            for name in ("stem.0", *(f"window_head.{3 * layer}" for layer in range(config.fc_layers)))
        }

    def run(self, _outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]]) -> tuple[Rows, Rows]:
        """Return window_logit [G] and node_logit [N] for EXPORT_INPUTS; edges are sorted by target, nodes by graph."""
        config, weights, kernels = self._config, self._weights, self._kernels
        num_nodes = len(feeds["x"])
        source, target = np.ascontiguousarray(feeds["edge_index"], np.int64)
        into = np.searchsorted(target, np.arange(num_nodes + 1))
        node_ptr = np.searchsorted(feeds["batch"], np.arange(int(feeds["num_graphs"]) + 1))
        of_edges = self._edge_scores(feeds["edge_attr"])

        x = self._product(self._standardised(feeds["x"], "standardise_nodes"), self._linear["stem.0"])
        norm = (weights["stem.1.weight"], weights["stem.1.bias"])
        kernels.norm_rows(x, weights["stem.0.bias"], *norm, np.empty(x.shape[1], np.float32))
        jumping = self._width * config.layers
        pooled = np.empty((len(node_ptr) - 1, jumping * len(config.pooling) + len(config.node_readout)), np.float32)
        logits = np.full(num_nodes, weights["node_head.bias"][0])
        scores = np.empty((len(source), config.heads), np.float32)
        row, wide = np.empty((2, self._width), np.float32)
        for layer, columns in enumerate(self._columns):
            product = self._product(x, columns)
            kernels.score_edges(product, self._width, of_edges, layer * config.heads, source, into, scores)
            np.exp(scores, out=scores)
            has_skip = columns.shape[1] > self._width + 2 * config.heads
            skip = (product, self._width + 2 * config.heads) if has_skip else (x, 0)
            norm = (weights[f"norms.{layer}.weight"], weights[f"norms.{layer}.bias"])
            head = weights["node_head.weight"][0, layer * self._width : (layer + 1) * self._width]
            output = np.empty((num_nodes, self._width), np.float32)
            bias = weights[f"convolutions.{layer}.bias"]
            kernels.aggregate(product, scores, source, into, *skip, bias, *norm, head, row, wide, output, logits)
            for place, how in enumerate(config.pooling):
                pool = kernels.pool_means if how == "mean" else kernels.pool_maxima
                pool(output, node_ptr, place * jumping + layer * self._width, pooled)
            x = output
        self._read_out(logits, node_ptr, pooled[:, jumping * len(config.pooling) :])
        for layer in range(config.fc_layers):
            name = f"window_head.{3 * layer}"
            pooled = self._product(np.maximum(pooled, 0) if layer else pooled, self._linear[name])
            pooled += weights[f"{name}.bias"]
        return pooled[:, 0], logits

    def _columns_of(self, layer: int, name: str) -> Rows:
        """Return [F, *]: messages, both halves of the attention, and what goes past it where that has weights."""
        columns = [self._weights[f"{name}.lin.weight"]]
        columns += [folded_attention(self._weights, name, "lin", half) for half in ("att_src", "att_dst")]
        skip = f"skips.{layer}.weight"
        columns += [self._weights[skip]] if skip in self._weights else []
        return np.ascontiguousarray(np.concatenate(columns).T)

    def _standardised(self, values: Rows, name: str) -> Rows:
        centred = (values - self._weights[f"{name}.mean"]) / self._weights[f"{name}.deviation"]
        return np.clip(centred, -self._config.clamp, self._config.clamp)

    def _edge_scores(self, values: Rows) -> Rows:
        """Return the edges' part of the scores of all layers [E, layers * H]; zeros where edges have no features."""
        if self._of_edges is None:
            return np.zeros((len(values), self._config.layers * self._config.heads), np.float32)
        return self._product(self._standardised(values, "standardise_edges"), self._of_edges)

    def _read_out(self, logits: Rows, node_ptr: NDArray[np.int64], output: Rows) -> None:
        """Write what windows see of their nodes' logits [G, R]."""
        largest = np.maximum.reduceat(logits, node_ptr[:-1])
        for place, readout in enumerate(self._config.node_readout):
            output[:, place] = largest
            if readout == "logsumexp":
                weight = np.exp(logits - np.repeat(largest, np.diff(node_ptr)))
                output[:, place] += np.log(np.add.reduceat(weight, node_ptr[:-1]))

    def _product(self, x: Rows, weight: Rows) -> Rows:
        product: Rows = self._session.run(None, {"x": x, "weight": weight})[0]
        return product
