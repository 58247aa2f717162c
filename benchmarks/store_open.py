"""Compare opening a graph store with loading the same graphs as a pickled list of Data objects.

Run: python benchmarks/store_open.py [--num-graphs 100000]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from simulated_windows import data_list, simulated_windows

from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES, PACKINGS, RECORDINGS, SCHEMA
from kdgat.graphs import GraphStore, TensorColumns, write_store


def seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of an action."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Write both layouts, time opening each, print times and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-graphs", type=int, default=20_000)
    num_graphs = parser.parse_args().num_graphs
    with tempfile.TemporaryDirectory() as directory:
        store_path, small_path, list_path = (Path(directory) / name for name in ("store.h5", "small.h5", "list.pt"))
        columns = simulated_windows(num_graphs)
        for path, part in ((store_path, columns), (small_path, columns.select(range(num_graphs // 100)))):
            start = time.perf_counter()
            write_store(
                path,
                SCHEMA,
                part,
                node_features=NODE_FEATURES,
                edge_features=EDGE_FEATURES,
                attributes={RECORDINGS: ["simulated"]},
                packings=PACKINGS,
                build={},
            )
            print(
                f"write {part.num_graphs} graphs, {path.stat().st_size / 1e6:.0f} MB: "
                f"{time.perf_counter() - start:.2f} s"
            )
        torch.save(data_list(columns), list_path)
        print(f"list of {num_graphs} Data objects: {list_path.stat().st_size / 1e6:.0f} MB")
        del columns

        open_s = seconds(lambda: GraphStore.open(store_path), 21)
        open_small_s = seconds(lambda: GraphStore.open(small_path), 21)
        tensors_s = seconds(lambda: TensorColumns.from_columns(GraphStore.open(store_path).columns), 21)
        load_s = seconds(lambda: torch.load(list_path, weights_only=False), 1)

    print(f"open {num_graphs} graphs:              {open_s * 1e3:10.2f} ms  (below 50 ms: {open_s < 0.05})")
    print(f"open {num_graphs // 100} graphs:                {open_small_s * 1e3:10.2f} ms")
    print(f"open {num_graphs} and wrap as tensors: {tensors_s * 1e3:10.2f} ms")
    print(f"torch.load of the list:            {load_s * 1e3:10.2f} ms")
    print(f"ratio torch.load / open: {load_s / open_s:.0f}")
    print(f"ratio open of 100 times the graphs: {open_s / open_small_s:.2f}")


if __name__ == "__main__":
    main()
