"""Compare one epoch of batches: TensorColumns.gather against Batch.from_data_list and PyG's DataLoader.

Run: python benchmarks/batching.py [--num-graphs 8000] [--batch-size 128] [--device cuda]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from simulated_windows import data_list, simulated_windows
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader

from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES, PACKINGS, RECORDINGS, SCHEMA
from kdgat.graphs import GraphStore, TensorColumns, write_store
from kdgat.graphs.plans import plan_by_graphs, plan_by_size


def seconds(action: Callable[[], object], repeats: int = 5) -> float:
    """Return the best wall time of an action, device work included: the least disturbed by other processes."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def run_through(batches: Iterable[Batch]) -> None:
    """Make every batch and drop it."""
    for _ in batches:
        pass


def main() -> None:
    """Check that both ways agree, time them over the same plan, print times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-graphs", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    columns = simulated_windows(arguments.num_graphs)
    graphs = data_list(columns)
    indices = np.arange(arguments.num_graphs)
    plan = plan_by_graphs(indices, arguments.batch_size, seed=0, epoch=0)

    def listed() -> Iterator[Batch]:
        return (Batch.from_data_list([graphs[index] for index in batch.tolist()]).to(device) for batch in plan)

    def gathered(tensors: TensorColumns) -> Iterator[Batch]:
        return (tensors.gather(batch) for batch in plan)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.h5"
        write_store(
            path,
            SCHEMA,
            columns,
            node_features=NODE_FEATURES,
            edge_features=EDGE_FEATURES,
            attributes={RECORDINGS: ["simulated"]},
            packings=PACKINGS,
            build={},
        )
        store = GraphStore.open(path)
        mapped = TensorColumns.from_columns(store.columns)
        resident = TensorColumns.from_columns(columns, device)
        for expected, found in zip(listed(), gathered(resident), strict=True):
            assert all(torch.equal(found[key], expected[key]) for key in expected.keys())  # noqa: SIM118

        list_s = seconds(lambda: run_through(listed()))
        loader = DataLoader(graphs, batch_size=arguments.batch_size, shuffle=True)
        loader_s = seconds(lambda: run_through(batch.to(device) for batch in loader))
        resident_s = seconds(lambda: run_through(gathered(resident)))
        mapped_s = seconds(lambda: run_through(batch.to(device) for batch in gathered(mapped)))
        by_graphs_s = seconds(lambda: plan_by_graphs(indices, arguments.batch_size, 0, 1))
        by_nodes_s = seconds(lambda: plan_by_size(indices, columns.node_counts, 3000, "max_nodes", 0, 1))

    print(f"{arguments.num_graphs} graphs in {len(plan)} batches on {device}, {torch.get_num_threads()} threads")
    for name, time_s in (
        ("Batch.from_data_list", list_s),
        ("torch_geometric DataLoader", loader_s),
        (f"gather, columns on {device}", resident_s),
        ("gather, columns mapped from the store", mapped_s),
        ("plan by graphs", by_graphs_s),
        ("plan by nodes", by_nodes_s),
    ):
        print(f"{name:40s} {time_s * 1e3:9.2f} ms/epoch")
    print(f"ratio from_data_list / gather:        {list_s / resident_s:.1f}")
    print(f"ratio from_data_list / gather mapped: {list_s / mapped_s:.1f}")
    print(f"ratio DataLoader / gather:            {loader_s / resident_s:.1f}")


if __name__ == "__main__":
    main()
