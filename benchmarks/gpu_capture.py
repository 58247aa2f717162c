"""A training step of fixed shapes, which a CUDA graph can hold: gather on the device, padding, masked losses, capture.

A batch of B graphs gets one graph more, which holds what is left of a fixed number of nodes and edges. Losses and
gradients are those of the B graphs. Nothing here asks the device for a size, so the host never waits for it: a captured
step costs the copy of B indices and one launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.training.objective import AutoencoderObjective, DetectionObjective
from kdgat.graphs import TensorColumns
from kdgat.graphs.batches import COMPUTED, StoredGraph

GRANULE = 64  # what numbers of nodes and edges are rounded up to
WARM_UP_STEPS = 3  # before a capture: libraries allocate and choose their kernels in the first ones


class Capacity(NamedTuple):
    """Fixed sizes of a padded batch; the graph of padding is not counted, its nodes and edges are."""

    graphs: int
    nodes: int
    edges: int

    @staticmethod
    def of(columns: TensorColumns, batches: Iterable[NDArray[np.int64]]) -> Capacity:
        """Return what the largest of some batches needs, with a node of padding at least."""
        node_counts = (columns.node_ptr[1:] - columns.node_ptr[:-1]).numpy()
        edge_counts = (columns.edge_ptr[1:] - columns.edge_ptr[:-1]).numpy()
        sizes = [(len(one), node_counts[one].sum(), edge_counts[one].sum()) for one in batches]
        graphs, nodes, edges = (int(max(column)) for column in zip(*sizes, strict=True))
        return Capacity(graphs, _rounded(nodes + 1), _rounded(edges))


def _rounded(number: int) -> int:
    return -(-number // GRANULE) * GRANULE


class StaticGather:
    """Gather graphs into a padded batch of fixed shapes, by a few launches on the device that holds the columns.

    The batch is that of `TensorColumns.gather`, with rows of zeros behind. `is_graph` [B + 1], `is_node` [N] and
    `is_edge` [E] are true for what is no padding.
    """

    def __init__(self, columns: TensorColumns, capacity: Capacity) -> None:
        """Keep columns and their offsets on the device; the last offset twice: one more index means "no graph"."""
        device = columns.device
        self.columns, self.capacity = columns, capacity
        self.nothing = columns.num_graphs  # the index of a graph without nodes, to fill a smaller batch with
        self._node_ptr = torch.cat([columns.node_ptr, columns.node_ptr[-1:]]).to(device)  # [G + 2]
        self._edge_ptr = torch.cat([columns.edge_ptr, columns.edge_ptr[-1:]]).to(device)
        self._nodes = torch.arange(capacity.nodes, device=device)  # [N]
        self._edges = torch.arange(capacity.edges, device=device)  # [E]
        self.indices = torch.full((capacity.graphs,), self.nothing, device=device)  # [B] what is gathered next
        # Copied from there without a wait. Two: the host may fill one while the device still reads the other.
        is_pinned = device.type == "cuda"
        self._staged = [torch.empty(capacity.graphs, dtype=torch.int64, pin_memory=is_pinned) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in range(2)] if is_pinned else []
        self._turn = 0

    def choose(self, indices: NDArray[np.int64]) -> None:
        """Copy the indices [up to B] of the next batch to the device: all that a captured step needs of the host."""
        staged = self._staged[self._turn]
        if self._copied:
            self._copied[self._turn].synchronize()  # of the batch before the last one: long over
        staged[: len(indices)] = torch.from_numpy(indices)
        staged[len(indices) :] = self.nothing
        self.indices.copy_(staged, non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
        self._turn = 1 - self._turn

    def __call__(self) -> Batch:
        """Return the graphs `indices` as a padded batch."""
        chosen, columns, capacity = self.indices, self.columns, self.capacity
        node_graph, node_rows, node_ends = _rows(self._node_ptr, chosen, self._nodes)
        edge_graph, edge_rows, edge_ends = _rows(self._edge_ptr, chosen, self._edges)
        is_graph = functional.pad(chosen != self.nothing, (0, 1))
        is_node, is_edge = self._nodes < node_ends[-1], self._edges < edge_ends[-1]
        starts = functional.pad(node_ends, (1, 0))  # [B + 1] first node of each graph, the one of padding included

        batch = Batch(_base_cls=StoredGraph)
        graph_rows = functional.pad(chosen.clamp(max=columns.num_graphs - 1), (0, 1))
        rows = {"graph": graph_rows, "node": node_rows, "edge": edge_rows}
        kept = {"graph": is_graph, "node": is_node, "edge": is_edge}
        for column in columns.columns:
            picked = columns.tensors[column.name].index_select(column.row_axis, rows[column.level])
            picked = picked.to(COMPUTED[column.dtype] if picked.is_floating_point() else torch.int64)
            if column.name == "edge_index":
                padding = padding_edges(self._edges, node_ends[-1], edge_ends[-1], capacity)
                batch.edge_index = torch.where(is_edge, picked + starts[edge_graph], padding)
            else:
                mask = kept[column.level]
                batch[column.name] = picked.masked_fill_(~mask.view(-1, *[1] * (picked.dim() - 1)), 0)
        batch.graph_index = chosen
        batch.batch = node_graph
        batch.ptr = torch.cat([starts, starts.new_full((1,), capacity.nodes)])
        batch.is_graph, batch.is_node, batch.is_edge = is_graph, is_node, is_edge
        batch._num_graphs = capacity.graphs + 1
        return batch


def _rows(ptr: Tensor, chosen: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return graph [N] and row [N] of each place of a batch, and where its graphs end [B]; B and row 0 for padding."""
    starts = ptr[chosen]
    counts = ptr[chosen + 1] - starts
    ends = counts.cumsum(0)
    graph = torch.searchsorted(ends, places, right=True)
    shift = functional.pad(starts - ends + counts, (0, 1))  # [B + 1] from a row of the batch to its row in the column
    return graph, torch.where(places < ends[-1], places + shift[graph], 0), ends


def padding_edges(places: Tensor, num_nodes: Tensor | int, num_edges: Tensor | int, capacity: Capacity) -> Tensor:
    """Return the nodes [E] that edges of padding go from and to: spread over the nodes of padding, rising.

    All at one node would queue up there, both for atomic additions and for a kernel that walks through a node's edges.
    """
    num_free = torch.as_tensor(capacity.edges - num_edges, device=places.device).clamp(min=1)
    node: Tensor = num_nodes + (places - num_edges) * (capacity.nodes - num_nodes) // num_free
    return node


def pad(batch: Batch, capacity: Capacity) -> Batch:
    """Return a batch of `TensorColumns.gather` padded as `StaticGather` pads; its sizes are known to the host."""
    num_nodes, num_edges, num_graphs = len(batch.x), batch.edge_index.shape[1], int(batch.num_graphs)
    levels = {"node": (num_nodes, capacity.nodes), "edge": (num_edges, capacity.edges)}
    levels["graph"] = (num_graphs, capacity.graphs + 1)
    if num_nodes >= capacity.nodes or num_edges > capacity.edges or num_graphs > capacity.graphs:
        raise ValueError(f"{num_graphs} graphs, {num_nodes} nodes, {num_edges} edges do not fit into {capacity}")
    padded = Batch(_base_cls=StoredGraph)
    for name, level in (("x", "node"), ("edge_attr", "edge"), ("node_y", "node"), ("node_id", "node"), ("y", "graph")):
        padded[name] = _with_zeros(batch[name], levels[level][1])
    device = batch.x.device
    places = torch.arange(capacity.edges, device=device)[num_edges:]
    nodes = padding_edges(places, num_nodes, num_edges, capacity)
    padded.edge_index = torch.cat([batch.edge_index, nodes.expand(2, -1)], dim=1)
    padded.batch = torch.cat([batch.batch, batch.batch.new_full((capacity.nodes - num_nodes,), capacity.graphs)])
    empty = batch.ptr[-1:].expand(capacity.graphs - num_graphs)
    padded.ptr = torch.cat([batch.ptr, empty, batch.ptr.new_full((1,), capacity.nodes)])
    for level, (number, room) in levels.items():
        padded[f"is_{level}"] = torch.arange(room, device=device) < number
    padded._num_graphs = capacity.graphs + 1
    return padded


def _with_zeros(rows: Tensor, number: int) -> Tensor:
    return torch.cat([rows, rows.new_zeros(number - len(rows), *rows.shape[1:])])


class StaticBatch:
    """Hold a padded batch at addresses that stay: what a captured step reads if the gather is no part of it."""

    def __init__(self, first: Batch) -> None:
        self._batch = first

    def fill(self, padded: Batch) -> None:
        """Overwrite the batch by another one of the same capacity."""
        for name, value in padded.to_dict().items():
            if isinstance(value, Tensor):
                self._batch[name].copy_(value)

    def __call__(self) -> Batch:
        """Return the batch."""
        return self._batch


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of rows [R, ...] that a mask [R] keeps; 0 if it keeps none."""
    width = values.numel() // max(len(values), 1)
    weight = mask.to(values.dtype)
    total = (values * weight.view(-1, *[1] * (values.dim() - 1))).sum()
    return total / (weight.sum() * width).clamp(min=1.0)


class MaskedDetection(nn.Module):
    """Compute the loss of a `DetectionObjective` without a teacher on padded batches."""

    names = ("train_loss", "train_window_loss", "train_node_loss")

    def __init__(self, objective: DetectionObjective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, batch: Batch) -> Tensor:
        """Return what is logged [3], the loss first; that carries the gradient."""
        config = self.objective.config
        output = self.objective.model(batch)
        window = self._cross_entropy(output.window_logit, batch.y, config.positive_weight, batch.is_graph)
        loss, node = window, window.new_zeros(())
        if config.node_weight > 0:
            node = self._cross_entropy(output.node_logit, batch.node_y, config.node_positive_weight, batch.is_node)
            loss = loss + config.node_weight * node
        return torch.stack([loss, window.detach(), node.detach()])

    def _cross_entropy(self, logit: Tensor, label: Tensor, positive_weight: float, mask: Tensor) -> Tensor:
        smoothing = self.objective.config.label_smoothing
        target = label.to(logit.dtype) * (1 - 2 * smoothing) + smoothing
        terms = functional.binary_cross_entropy_with_logits(logit, target, reduction="none")
        if positive_weight != 1.0:
            terms = terms * torch.where(label > 0, positive_weight, 1.0)
        return masked_mean(terms, mask)


class MaskedAutoencoder(nn.Module):
    """Compute the loss of an `AutoencoderObjective` without a teacher, and without identifiers, on padded batches."""

    names = ("train_loss", "train_feature_loss", "train_divergence", "train_neighbourhood_loss")

    def __init__(self, objective: AutoencoderObjective) -> None:
        super().__init__()
        self.objective = objective

    def forward(self, batch: Batch) -> Tensor:
        """Return what is logged [4], the loss first; that carries the gradient."""
        model = self.objective.model
        config, output = model.config, model(batch)
        features = masked_mean((output.reconstruction - output.target).square(), batch.is_node)
        mean, log_variance = output.latent_mean, output.latent_log_variance
        divergence = -0.5 * masked_mean(1 + log_variance - mean.square() - log_variance.exp(), batch.is_node)
        neighbourhood = features.new_zeros(())
        if config.neighbourhood_weight > 0:
            neighbourhood = self._neighbourhood_loss(model, batch, output.latent)
        loss = features + config.kl_weight * divergence + config.neighbourhood_weight * neighbourhood
        return torch.stack([loss, features.detach(), divergence.detach(), neighbourhood.detach()])

    def _neighbourhood_loss(self, model: GraphAutoencoder, batch: Batch, latent: Tensor) -> Tensor:
        """Compute what `GraphAutoencoder._neighbourhood_loss` does, over the edges that are no padding."""
        source, target = batch.edge_index
        graph = batch.batch[source]
        first, size = batch.ptr[graph], (batch.ptr[1:] - batch.ptr[:-1])[graph]
        if model.training:
            draw = torch.rand(source.shape, device=source.device)
        else:
            draw = torch.frac(torch.arange(len(source), device=source.device) * 0.618033988749895)
        other = first + torch.minimum((draw * size).long(), size - 1)
        num_nodes = len(latent)
        keys = target * num_nodes + source
        pairs = other * num_nodes + source
        place = torch.searchsorted(keys, pairs).clamp(max=len(keys) - 1)
        is_absent = (keys[place] != pairs) & batch.is_edge
        sources, targets = model.neighbour_source(latent), model.neighbour_target(latent)
        from_source = sources.index_select(0, source)
        positive = (from_source * targets.index_select(0, target)).sum(dim=1)
        negative = (from_source * targets.index_select(0, other)).sum(dim=1)
        present = masked_mean(functional.softplus(-positive), batch.is_edge)
        return 0.5 * (present + masked_mean(functional.softplus(negative), is_absent))


def masked(model: GraphAttentionNetwork | GraphAutoencoder) -> MaskedDetection | MaskedAutoencoder:
    """Return the loss of a model on padded batches."""
    if isinstance(model, GraphAutoencoder):
        return MaskedAutoencoder(AutoencoderObjective(model))
    return MaskedDetection(DetectionObjective(model))


def make_optimizer(parameters: Sequence[nn.Parameter], learning_rate: float = 1e-3) -> torch.optim.AdamW:
    """Return AdamW in one kernel; on a GPU in the form that a CUDA graph can hold, with a rate that can change."""
    if parameters[0].device.type != "cuda":
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=1e-2, fused=True)
    rate = torch.tensor(learning_rate, device=parameters[0].device)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=1e-2, fused=True, capturable=True)


class StaticStep:
    """Take training steps on batches of fixed shapes: eagerly, or as one CUDA graph once `capture` was called."""

    def __init__(
        self,
        objective: MaskedDetection | MaskedAutoencoder,
        read: Callable[[], Batch],
        optimizer: torch.optim.Optimizer,
        largest_norm: float = 1.0,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Step an objective on what `read` returns, from memory that the host fills before each step."""
        self.objective, self.optimizer = objective, optimizer
        self._read, self._largest_norm, self._autocast = read, largest_norm, autocast
        self.parameters = [one for group in optimizer.param_groups for one in group["params"]]
        device = self.parameters[0].device
        self.sums = torch.zeros(len(objective.names), dtype=torch.float64, device=device)  # of what is logged
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Take a step."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self._step()

    def _step(self) -> None:
        # Gradients are None before: the backward pass then writes them, and need not add to zeros.
        with self._autocast():
            logged = self.objective(self._read())
        logged[0].backward()
        nn.utils.clip_grad_norm_(self.parameters, self._largest_norm)
        self.optimizer.step()
        self.sums += logged.detach()

    def capture(self) -> None:
        """Record a step as a CUDA graph; weights, moments, sums and random state are afterwards as before."""
        device = self.parameters[0].device
        random_state = torch.cuda.get_rng_state(device)
        weights = [one.detach().clone() for one in self.parameters]
        states = {
            one: {name: value.clone() for name, value in self.optimizer.state[one].items()}
            for one in self.parameters
            if one in self.optimizer.state
        }
        sums = self.sums.clone()
        stream = torch.cuda.Stream(device)  # the same for warm-up and capture, so that autograd stays on it
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*capturable=True.*")
            for _ in range(WARM_UP_STEPS):
                self.optimizer.zero_grad(set_to_none=True)
                self._step()
        torch.cuda.current_stream(device).wait_stream(stream)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self._step()
        with torch.no_grad():
            for parameter, weight in zip(self.parameters, weights, strict=True):
                parameter.copy_(weight)
                for name, value in self.optimizer.state[parameter].items():
                    if parameter in states:
                        value.copy_(states[parameter][name])
                    else:
                        value.zero_()
            self.sums.copy_(sums)
        torch.cuda.set_rng_state(random_state, device)
        self._graph = graph
