"""A training step of fixed shapes as one CUDA graph: what `kdgat.graphs.padding` gathers, its losses, the optimizer.

A batch of B graphs gets one graph more, which holds what is left of a fixed number of nodes and edges. Losses and
gradients are those of the B graphs. Nothing here asks the device for a size, so the host never waits for it: a captured
step costs the copy of B indices and one launch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from kdgat.can.training.objective import AutoencoderObjective, DetectionObjective
from kdgat.graphs.batches import StoredGraph
from kdgat.graphs.padding import Capacity, padding_edges

DETECTION_NAMES = ("train_loss", "train_window_loss", "train_node_loss")
AUTOENCODER_NAMES = ("train_loss", "train_feature_loss", "train_divergence", "train_neighbourhood_loss")
WARM_UP_STEPS = 3  # before a capture: libraries allocate and choose their kernels in the first ones


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


class Padded(nn.Module):
    """Compute what an objective of the trainer logs on padded batches, as one vector whose first number is the loss."""

    def __init__(self, objective: DetectionObjective | AutoencoderObjective) -> None:
        super().__init__()
        self.objective = objective
        is_detection = isinstance(objective, DetectionObjective)
        self.names = DETECTION_NAMES if is_detection else AUTOENCODER_NAMES

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss, which carries the gradient, and the other numbers of `names`."""
        logged: dict[str, Tensor] = {}
        self.objective.__dict__["log"] = logged.__setitem__
        try:
            loss = self.objective.training_step(batch)
        finally:
            del self.objective.__dict__["log"]
        return torch.stack([loss, *(logged[name] for name in self.names[1:])])


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
        objective: Padded,
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
