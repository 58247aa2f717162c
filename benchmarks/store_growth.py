"""Measure how writing, opening and reading a store grow with its graphs: time and memory of each should stay flat.

Run `python benchmarks/store_growth.py [--graphs N ...]`. Ten thousand simulated windows are written again and again;
each size is measured in processes of its own, one that writes and one that reads an epoch of batches of 128 graphs in
random order. Memory is what the process takes beyond its imports; pages of the mapped file, which the kernel takes back
when it needs them, are told apart. `--out ROWS` adds JSON lines to a file that `growth.py` draws.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from simulated_windows import simulated_windows

from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES, PACKINGS, RECORDINGS, SCHEMA
from kdgat.graphs import GraphStore, TensorColumns, write_store
from kdgat.graphs.plans import plan_by_graphs

OF_A_CHUNK = 10_000
MOST_READ = 100_000  # graphs of an epoch: random reads of a store that does not fit the page cache measure the disk


def main() -> None:
    """Measure each size, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--out", type=Path, help="JSON lines that rows are added to")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.write:
        print(json.dumps(write(arguments.write, arguments.graphs[0])))
        return
    if arguments.read:
        print(json.dumps(read(arguments.read)))
        return
    names = ("graphs", "bytes each", "write us", "MB", "open ms", "batch us", "MB", "mapped MB")
    print("".join(f"{name:>12}" for name in names))
    for num_graphs in arguments.graphs:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "store.h5"
            written = _in_a_process("--write", path, num_graphs)
            found = _in_a_process("--read", path, num_graphs)
            size = path.stat().st_size / num_graphs
            values = (size, written["us"], written["mb"], *(found[key] for key in ("open_ms", "us", "mb", "mapped_mb")))
            print(f"{num_graphs:>12,}" + "".join(f"{value:>12,.1f}" for value in values), flush=True)
            if arguments.out:
                with arguments.out.open("a") as rows:
                    for what, row in (("write a graph", written), ("read a graph", found)):
                        named = {"what": what, "size": num_graphs, "us": row["us"], "mb": row["mb"]}
                        rows.write(json.dumps(named) + "\n")


def write(path: Path, num_graphs: int) -> dict[str, float]:
    """Write a store; return CPU time a graph, and memory."""
    chunk = simulated_windows(min(OF_A_CHUNK, num_graphs))
    before, start = _memory_mb("RssAnon"), time.process_time()
    write_store(
        path,
        SCHEMA,
        (chunk for _ in range(num_graphs // chunk.num_graphs)),
        node_features=NODE_FEATURES,
        edge_features=EDGE_FEATURES,
        attributes={RECORDINGS: ["simulated"]},
        packings=PACKINGS,
        build={},
    )
    return {"us": 1e6 * (time.process_time() - start) / num_graphs, "mb": _memory_mb("RssAnon") - before}


def read(path: Path) -> dict[str, float]:
    """Open a store and gather an epoch of batches; return time to open, CPU time a graph, and memory."""
    before = _memory_mb("RssAnon"), _memory_mb("RssFile")
    start = time.perf_counter()
    store = GraphStore.open(path, SCHEMA)
    open_ms = 1e3 * (time.perf_counter() - start)
    tensors = TensorColumns.from_columns(store.columns)
    plan = plan_by_graphs(np.arange(store.num_graphs), 128, seed=0, epoch=0)[: -(-MOST_READ // 128)]
    start = time.process_time()
    for batch in plan:
        tensors.gather(batch)
    us = 1e6 * (time.process_time() - start) / sum(map(len, plan))
    return {
        "open_ms": open_ms,
        "us": us,
        "mb": _memory_mb("RssAnon") - before[0],
        "mapped_mb": _memory_mb("RssFile") - before[1],
    }


def _in_a_process(what: str, path: Path, num_graphs: int) -> dict[str, float]:
    command = [sys.executable, __file__, what, str(path), "--graphs", str(num_graphs)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _memory_mb(field: str) -> float:
    return float(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024.0


if __name__ == "__main__":
    main()
