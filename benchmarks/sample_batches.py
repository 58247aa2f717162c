"""Compare batches of an experiment's samples, packed and one by one, with those of PyG's loader, on the same graphs.

Times are processor times of an epoch in this process, order and all. Sides take turns; ratios are medians of turns with
their quartiles.

Run: OMP_NUM_THREADS=1 python benchmarks/sample_batches.py [--num-batches 30] [--turns 15]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from kdgat.experiment.samples import Samples, write_samples
from kdgat.training import TrainingConfig

NUM_FEATURES = 16


def random_graphs(number: int, num_nodes: int) -> list[Data]:
    """Return graphs shaped as molecules: a ring with some bridges, features of nodes and edges, a target."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(number):
        size = int(torch.randint(num_nodes // 2, num_nodes * 3 // 2 + 1, (1,), generator=generator))
        ring = torch.stack([torch.arange(size), torch.arange(size).roll(-1)])
        bridges = torch.randint(0, size, (2, size // 8), generator=generator)
        edge_index = torch.cat([ring, bridges, ring.flip(0), bridges.flip(0)], 1)
        x = torch.randn(size, NUM_FEATURES, generator=generator)
        edge_attr = torch.randn(edge_index.shape[1], 4, generator=generator)
        found.append(Data(x=x, edge_index=edge_index, edge_attr=edge_attr, y=x[:, :2].prod(1).sum().view(1)))
    return found


def run_through(batches: Iterable[Any]) -> float:
    """Make every batch and drop it; return the seconds."""
    began = time.process_time()
    for _ in batches:
        pass
    return time.process_time() - began


def compare(num_nodes: int, batch_size: int, num_batches: int, turns: int, folder: Path) -> None:
    """Print the sides for graphs and batches of these sizes."""
    graphs = random_graphs(num_batches * batch_size, num_nodes)
    config = TrainingConfig(batch_size=batch_size)

    def of_samples(name: str, collate: Any) -> Callable[[], Iterable[Any]]:
        write_samples(folder / name, graphs, collate)
        source = Samples(folder / name, collate).source(config, 0, shuffle=True)
        return lambda: (source.gather(indices) for indices in source.plan(0))

    sides: dict[str, Callable[[], Iterable[Any]]] = {
        "PyG's loader": lambda: DataLoader(graphs, batch_size, shuffle=True),
        "packed": of_samples("packed", None),
        "one by one": of_samples("single", Batch.from_data_list),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(turns):
        for name, batches in sides.items():
            times[name].append(run_through(batches()))
    loader = np.array(times["PyG's loader"])
    print(f"{batch_size} graphs of {num_nodes} nodes")
    for name, found in times.items():
        low, middle, high = np.quantile(np.array(found) / loader, (0.25, 0.5, 0.75))
        ratio = f"{middle:.3f} ({low:.3f} to {high:.3f})"
        print(f"  {name:16}{np.median(found) / num_batches * 1e3:9.3f} ms/batch   {ratio}")


def main() -> None:
    """Compare the sides for small and larger graphs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-batches", type=int, default=30)
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for num_nodes in (20, 200):
        for batch_size in (32, 128):
            with tempfile.TemporaryDirectory() as folder:
                compare(num_nodes, batch_size, arguments.num_batches, arguments.turns, Path(folder))


if __name__ == "__main__":
    main()
