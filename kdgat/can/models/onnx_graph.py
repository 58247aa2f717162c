"""An attention network as an ONNX graph, made from its weights and its description without torch.

The same function as `GraphAttentionNetwork` in evaluation mode. Each convolution is one matrix product: projection,
both halves of the attention and, where it has weights, the skip beside it. Sums and maxima over edges and nodes are
`ScatterND` with a reduction, which works row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from kdgat.base import UserError, validate_config
from kdgat.can.sections import AttentionConfig

OPSET: Final = 18  # the first with reductions in ScatterND
IR_VERSION: Final = 9  # of that time: older runtimes refuse newer files
NEGATIVE_SLOPE: Final = 0.2  # as in kdgat.can.models.convolution
NORM_EPSILON: Final = 1e-5  # as of torch.nn.LayerNorm
LOWEST: Final = -3.0e38  # before the first value of a maximum

Weights = Mapping[str, NDArray[np.float32]]


def attention_graph(weights: Weights, description: Mapping[str, Any], metadata: Mapping[str, str]) -> onnx.ModelProto:
    """Return the network as a model that reads EXPORT_INPUTS, returns EXPORT_OUTPUTS and carries metadata.

    Inputs: x [N, F], edge_index [2, E] over all nodes, edge_attr [E, D], the graph of each node batch [N] (each graph
    has one), num_graphs []. Outputs: window_logit [G], node_logit [N]. `description` is that of `describe_model`.
    """
    config = validate_config(AttentionConfig, description["model"])
    if config.id_embedding:
        raise UserError(
            f"id_embedding={config.id_embedding}: a model that knows identifiers by name is of use for one vehicle, "
            "and exported without them it would be another model; train with id_embedding=0"
        )
    graph = _Graph(weights)
    _network(graph, config)
    sizes = {"x": description["num_node_features"], "edge_attr": description["num_edge_features"]}
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "kdgat",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["nodes", sizes["x"]]),
                helper.make_tensor_value_info("edge_index", TensorProto.INT64, [2, "edges"]),
                helper.make_tensor_value_info("edge_attr", TensorProto.FLOAT, ["edges", sizes["edge_attr"]]),
                helper.make_tensor_value_info("batch", TensorProto.INT64, ["nodes"]),
                helper.make_tensor_value_info("num_graphs", TensorProto.INT64, []),
            ],
            [
                helper.make_tensor_value_info("window_logit", TensorProto.FLOAT, ["graphs"]),
                helper.make_tensor_value_info("node_logit", TensorProto.FLOAT, ["nodes"]),
            ],
            graph.constants,
        ),
        producer_name="kdgat",
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    helper.set_model_props(model, dict(metadata))
    return model


class _Graph:
    """Collect nodes and constants; values are names."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, num_outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """Append a node; return the name of its output, or those of several."""
        names = [name or f"{operator.lower()}_{len(self.nodes)}_{place}" for place in range(num_outputs)]
        self.nodes.append(helper.make_node(operator, inputs, names, **attributes))
        return names[0] if num_outputs == 1 else names

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        """Store an array."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype, order="C"), name))
        return name

    def linear(self, x: str, layer: str) -> str:
        """Apply a torch.nn.Linear of the weights."""
        product = self.add("MatMul", x, self.constant(self.weights[f"{layer}.weight"].T))
        bias = f"{layer}.bias"
        return str(self.add("Add", product, self.constant(self.weights[bias])) if bias in self.weights else product)

    def norm(self, x: str, layer: str) -> str:
        """Apply a torch.nn.LayerNorm of the weights."""
        scale, bias = (self.constant(self.weights[f"{layer}.{name}"]) for name in ("weight", "bias"))
        return str(self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=NORM_EPSILON))

    def standardised(self, x: str, layer: str, limit: float) -> str:
        """Apply a `Standardise` of the weights."""
        centred = self.add("Sub", x, self.constant(self.weights[f"{layer}.mean"]))
        scaled = self.add("Div", centred, self.constant(self.weights[f"{layer}.deviation"]))
        return str(self.add("Clip", scaled, self.constant(-limit), self.constant(limit)))

    def rows(self, count: str, width: int | None, value: float) -> str:
        """Return `count` rows [count, width] of a value; [count] without a width."""
        shape = count if width is None else self.add("Concat", count, self.constant([width], np.int64), axis=0)
        fill = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
        return str(self.add("ConstantOfShape", shape, value=fill))

    def reduced(self, values: str, index: str, count: str, width: int | None, how: str) -> str:
        """Add the rows of each group, or take their maximum; `index` [R, 1] has the group of each row."""
        start = self.rows(count, width, 0.0 if how == "add" else LOWEST)
        return str(self.add("ScatterND", start, index, values, reduction=how))

    def taken(self, values: str, index: str) -> str:
        """Return some rows."""
        return str(self.add("Gather", values, index, axis=0))


def _network(graph: _Graph, config: AttentionConfig) -> None:
    first, column = graph.constant([0], np.int64), graph.constant([1], np.int64)
    x = graph.standardised("x", "standardise_nodes", config.clamp)
    edges = graph.standardised("edge_attr", "standardise_edges", config.clamp) if config.edge_features else None
    source, target = (graph.add("Gather", "edge_index", graph.constant(row, np.int64), axis=0) for row in (0, 1))
    into = graph.add("Unsqueeze", target, column)  # [E, 1]
    num_nodes = graph.add("Slice", graph.add("Shape", "x"), first, column)  # [1]
    num_graphs = graph.add("Unsqueeze", "num_graphs", first)
    of_graph = graph.add("Unsqueeze", "batch", column)  # [N, 1]

    x = _activated(graph, graph.norm(graph.linear(x, "stem.0"), "stem.1"), config)
    width = config.hidden * config.heads
    jumps = []
    for layer in range(config.layers):
        convolution = _attention if config.conv_type == "gat" else _attention_v2
        message, skipped = convolution(graph, layer, x, edges, source, target, into, num_nodes, config)
        x = _activated(graph, graph.norm(graph.add("Add", message, skipped), f"norms.{layer}"), config)
        jumps.append(x)
    x = jumps[0] if len(jumps) == 1 else graph.add("Concat", *jumps, axis=1)
    jumping = width * config.layers
    last = graph.constant([-1], np.int64)
    node_logit = graph.add("Reshape", graph.linear(x, "node_head"), last, name="node_logit")

    ones = graph.rows(num_nodes, None, 1.0)
    sizes = graph.add("Unsqueeze", graph.reduced(ones, of_graph, num_graphs, None, "add"), column)  # [G, 1]
    parts = []
    for name in config.pooling:
        pooled = graph.reduced(x, of_graph, num_graphs, jumping, "add" if name == "mean" else "max")
        parts.append(graph.add("Div", pooled, sizes) if name == "mean" else pooled)
    if config.node_readout:
        largest = graph.reduced(node_logit, of_graph, num_graphs, None, "max")
    for readout in config.node_readout:
        value = largest if readout == "max" else _logsumexp(graph, node_logit, largest, of_graph, num_graphs)
        parts.append(graph.add("Unsqueeze", value, column))
    hidden = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=1)
    for layer in range(config.fc_layers - 1):  # linear, activation, dropout
        hidden = _activated(graph, graph.linear(hidden, f"window_head.{3 * layer}"), config)
    logit = graph.linear(hidden, f"window_head.{3 * (config.fc_layers - 1)}")
    graph.add("Reshape", logit, last, name="window_logit")


def _activated(graph: _Graph, x: str, config: AttentionConfig) -> str:
    if config.activation == "relu":
        return str(graph.add("Relu", x))
    error = graph.add("Erf", graph.add("Mul", x, graph.constant(0.5**0.5)))
    half = graph.add("Mul", x, graph.constant(0.5))
    return str(graph.add("Mul", half, graph.add("Add", error, graph.constant(1.0))))


def _attention(
    graph: _Graph, layer: int, x: str, edges: str | None, source: str, target: str, into: str, num_nodes: str,
    config: AttentionConfig,
) -> tuple[str, str]:  # fmt: skip
    """Return message and skip [N, H * C] of a `GraphAttention`."""
    name = f"convolutions.{layer}"
    projection = graph.weights[f"{name}.lin.weight"]  # [H * C, F]
    columns = [projection, *(_folded_attention(graph.weights, name, "lin", half) for half in ("att_src", "att_dst"))]
    skip = f"skips.{layer}.weight"
    if skip in graph.weights:
        columns.append(graph.weights[skip])
    product = graph.add("MatMul", x, graph.constant(np.concatenate(columns).T))
    split = graph.constant([len(part) for part in columns], np.int64)
    values, of_source, of_target, *skipped = graph.add("Split", product, split, axis=1, num_outputs=len(columns))
    score = graph.add("Add", graph.taken(of_source, source), graph.taken(of_target, target))
    if edges is not None:
        of_edge = graph.add(
            "MatMul", edges, graph.constant(_folded_attention(graph.weights, name, "lin_edge", "att_edge").T)
        )
        score = graph.add("Add", score, of_edge)
    score = graph.add("LeakyRelu", score, alpha=NEGATIVE_SLOPE)
    message = _aggregated(graph, graph.taken(values, source), score, target, into, num_nodes, config)
    return graph.add("Add", message, graph.constant(graph.weights[f"{name}.bias"])), skipped[0] if skipped else x


def _folded_attention(weights: Weights, name: str, linear: str, attention: str) -> NDArray[np.float32]:
    """Return [H, F], the product of a projection [H * C, F] and the attention vector [1, H, C] of each head."""
    vector = weights[f"{name}.{attention}"][0].astype(np.float64)
    weight = weights[f"{name}.{linear}.weight"].astype(np.float64).reshape(*vector.shape, -1)
    return np.einsum("hcf,hc->hf", weight, vector).astype(np.float32)


def _attention_v2(
    graph: _Graph, layer: int, x: str, edges: str | None, source: str, target: str, into: str, num_nodes: str,
    config: AttentionConfig,
) -> tuple[str, str]:  # fmt: skip
    """Return message and skip [N, H * C] of a `GraphAttentionV2`."""
    name = f"convolutions.{layer}"
    of_source = graph.taken(graph.linear(x, f"{name}.lin_l"), source)
    mixed = graph.add("Add", of_source, graph.taken(graph.linear(x, f"{name}.lin_r"), target))
    if edges is not None:
        mixed = graph.add("Add", mixed, graph.linear(edges, f"{name}.lin_edge"))
    heads = graph.constant([-1, config.heads, config.hidden], np.int64)
    mixed = graph.add("Reshape", graph.add("LeakyRelu", mixed, alpha=NEGATIVE_SLOPE), heads)
    weighted = graph.add("Mul", mixed, graph.constant(graph.weights[f"{name}.att"]))
    score = graph.add("ReduceSum", weighted, graph.constant([2], np.int64), keepdims=0)
    message = _aggregated(graph, of_source, score, target, into, num_nodes, config)
    skip = f"skips.{layer}"
    skipped = graph.linear(x, skip) if f"{skip}.weight" in graph.weights else x
    return graph.add("Add", message, graph.constant(graph.weights[f"{name}.bias"])), skipped


def _aggregated(
    graph: _Graph, values: str, score: str, target: str, into: str, num_nodes: str, config: AttentionConfig
) -> str:
    """Sum values [E, H * C] by scores [E, H], normalised over the edges into each node."""
    largest = graph.reduced(score, into, num_nodes, config.heads, "max")
    weight = graph.add("Exp", graph.add("Sub", score, graph.taken(largest, target)))
    total = graph.reduced(weight, into, num_nodes, config.heads, "add")
    attention = graph.add("Div", weight, graph.taken(total, target))
    heads = graph.constant([-1, config.heads, config.hidden], np.int64)
    weighted = graph.add(
        "Mul",
        graph.add("Reshape", values, heads),
        graph.add("Unsqueeze", attention, graph.constant([2], np.int64)),
    )
    width = config.heads * config.hidden
    flat = graph.add("Reshape", weighted, graph.constant([-1, width], np.int64))
    return graph.reduced(flat, into, num_nodes, width, "add")


def _logsumexp(graph: _Graph, values: str, largest: str, of_graph: str, num_graphs: str) -> str:
    graph_of_node = graph.add("Reshape", of_graph, graph.constant([-1], np.int64))
    weight = graph.add("Exp", graph.add("Sub", values, graph.taken(largest, graph_of_node)))
    total = graph.reduced(weight, of_graph, num_graphs, None, "add")
    return str(graph.add("Add", graph.add("Log", total), largest))
