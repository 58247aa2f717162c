"""Throughput of the CAN models on one thread, and what each departure from the library's operations gains.

    OMP_NUM_THREADS=1 python benchmarks/models.py

Prints windows per second of training (forward, backward, clip, AdamW) and inference for each model at its published
widths, on graphs of the size of real windows (29 nodes, 60 edges), then steps beside those of the published system
(`peer.py`), which take turns, then ratios of single operations. CPU seconds are measured, so that other processes on
the machine disturb little.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from peer import PeerAttention, PeerAutoencoder, peer_batches, peer_step  # beside this script
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GATConv, global_max_pool

from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.models.convolution import build_convolution, count_parameters
from kdgat.can.models.pooling import ByteDropout, graph_max
from kdgat.can.sections import AttentionConfig, AutoencoderConfig
from kdgat.gpu.networks import random_windows
from kdgat.graphs import TensorColumns
from kdgat.training.allocator import keep_freed_memory

NUM_NODES, NUM_EDGES, NUM_NODE_FEATURES, NUM_EDGE_FEATURES = 29, 60, 51, 7
BATCH = 128


def make_windows(num_graphs: int) -> TensorColumns:
    """Make windows of random features and edges."""
    nodes, edges = (NUM_NODES, NUM_NODES + 1), (NUM_EDGES, NUM_EDGES + 1)
    return TensorColumns.from_columns(random_windows(num_graphs, nodes, edges, NUM_NODE_FEATURES))


def loss_of(model: nn.Module, batch: object) -> Tensor:
    """Return a model's training loss."""
    if isinstance(model, GraphAutoencoder):
        return model.loss(batch, model(batch)).total
    output = model(batch)
    window = functional.binary_cross_entropy_with_logits(output.window_logit, batch.y.float())  # type: ignore[attr-defined]
    node = functional.binary_cross_entropy_with_logits(output.node_logit, batch.node_y.float())  # type: ignore[attr-defined]
    return window + node


def train_rate(model: nn.Module, windows: TensorColumns, repeats: int, bfloat16: bool = False) -> float:
    """Return windows per CPU second of training."""
    return BATCH / cpu_seconds(training_step(model, windows, bfloat16), repeats)


def training_step(model: nn.Module, windows: TensorColumns, bfloat16: bool = False) -> Callable[[int], object]:
    """Return one step of training: batch, forward, backward, clip, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model.train()

    def step(place: int) -> None:
        batch = windows.gather(np.arange(place * BATCH, (place + 1) * BATCH) % windows.num_graphs)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def beside_peer(windows: TensorColumns, sizes: tuple[int, int], repeats: int) -> None:
    """Print the time of a large step and the peer's, with and without its checkpoints, in turns."""
    batches = peer_batches(4 * BATCH, NUM_NODES, NUM_EDGES, BATCH)
    makers: dict[str, tuple[Callable[[], nn.Module], type[PeerAttention | PeerAutoencoder]]] = {
        "GAT large": (lambda: GraphAttentionNetwork(AttentionConfig(), *sizes), PeerAttention),
        "VGAE large": (lambda: GraphAutoencoder(AutoencoderConfig(), *sizes), PeerAutoencoder),
    }
    print(
        f"\n{'step, ms':12s} {'peer':>8s} {'plain':>8s} {'ours':>8s} {'bf16':>8s}   peer/ours, /bf16; plain/ours, /bf16"
    )
    for name, (make, peer) in makers.items():
        steps = [peer_step(peer(), batches), peer_step(peer(has_checkpoints=False), batches)]
        steps += [training_step(make(), windows), training_step(make(), windows, bfloat16=True)]
        taken: list[list[float]] = [[] for _ in steps]
        for place in range(repeats + 1):
            for step, seconds in zip(steps, taken, strict=True):
                started = time.process_time()
                step(place)
                seconds.append(1000 * (time.process_time() - started))
        best = [min(seconds[1:]) for seconds in taken]
        ratios = [best[0] / best[2], best[0] / best[3], best[1] / best[2], best[1] / best[3]]
        print(f"{name:12s}", *(f"{one:8.1f}" for one in best), "  " + ", ".join(f"{one:.2f}" for one in ratios))


def inference_rate(model: nn.Module, windows: TensorColumns, repeats: int) -> float:
    """Return windows per CPU second of inference."""
    model.eval()
    with torch.inference_mode():
        seconds = cpu_seconds(lambda place: model(windows.gather(np.arange(BATCH) + (place % 4) * BATCH)), repeats)
    return BATCH / seconds


def cpu_seconds(function: Callable[[int], object], repeats: int) -> float:
    """Return the median CPU time of a call, after one that is not counted."""
    function(0)
    seconds = []
    for place in range(1, repeats + 1):
        started = time.process_time()
        function(place)
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


def backward_of(function: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[int], object]:
    """Return a call of forward and backward."""
    return lambda _: function(x.detach().requires_grad_()).sum().backward()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=8)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    windows = make_windows(4 * BATCH)
    sizes = (NUM_NODE_FEATURES, NUM_EDGE_FEATURES)
    small = AttentionConfig(hidden=24, heads=4, layers=2, fc_layers=2, dropout=0.1)
    models: dict[str, nn.Module] = {
        "GAT large": GraphAttentionNetwork(AttentionConfig(), *sizes),
        "GATv2 large": GraphAttentionNetwork(AttentionConfig(conv_type="gatv2"), *sizes),
        "GAT small": GraphAttentionNetwork(small, *sizes),
        "VGAE large": GraphAutoencoder(AutoencoderConfig(), *sizes),
        "VGAE small": GraphAutoencoder(AutoencoderConfig(hidden_dims=(80, 40, 16), heads=1), *sizes),
    }
    print(f"{'model':12s} {'parameters':>10s} {'train/s':>9s} {'bf16 train/s':>13s} {'inference/s':>12s}")
    for name, model in models.items():
        rates = [train_rate(model, windows, repeats), train_rate(model, windows, repeats, bfloat16=True)]
        inference = inference_rate(model, windows, repeats)
        print(f"{name:12s} {count_parameters(model):10,d} {rates[0]:9,.0f} {rates[1]:13,.0f} {inference:12,.0f}")

    kept = [(train_rate(models[name], windows, repeats), name) for name in ("GAT large", "VGAE large")]
    keep_freed_memory()
    beside_peer(windows, sizes, repeats)
    print(f"\n{'training':12s} {'default/s':>10s} {'kept/s':>9s} {'ratio':>6s}   (freed memory kept by the process)")
    for before, name in kept:
        after = train_rate(models[name], windows, repeats)
        print(f"{name:12s} {before:10,.0f} {after:9,.0f} {after / before:6.2f}")

    batch = windows.gather(np.arange(BATCH))
    wide = torch.randn(batch.x.shape[0], 1152)
    features, edges = torch.randn(batch.x.shape[0], 384), batch.edge_attr
    ours = build_convolution("gat", 384, 48, 8, NUM_EDGE_FEATURES)
    library = GATConv(384, 48, heads=8, edge_dim=NUM_EDGE_FEATURES, add_self_loops=False)
    dropout = ByteDropout(0.2)
    pairs: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Tensor]] = {
        "max pooling": (
            lambda x: global_max_pool(x, batch.batch, BATCH), lambda x: graph_max(x, batch.batch, BATCH), wide
        ),
        "dropout": (lambda x: functional.dropout(x, 0.2), dropout, wide),
        "GAT layer": (
            lambda x: library(x, batch.edge_index, edges), lambda x: ours(x, batch.edge_index, edges), features
        ),
    }  # fmt: skip
    print(f"\n{'operation':12s} {'library ms':>10s} {'ours ms':>9s} {'ratio':>6s}   (forward and backward)")
    for name, (theirs, own, x) in pairs.items():
        milliseconds = [1000 * cpu_seconds(backward_of(function, x), repeats) for function in (theirs, own)]
        print(f"{name:12s} {milliseconds[0]:10.1f} {milliseconds[1]:9.1f} {milliseconds[0] / milliseconds[1]:6.2f}")


if __name__ == "__main__":
    main()
