"""Measure how fast graphs are built from messages on one core, alone and with reading the recording first.

Run `python benchmarks/building.py [PATH ...] [--messages N] [--repeats K]`: PATH is a recording or a folder of them;
without one, drives are simulated. Prints messages per second of CPU time, how they compare with the targets, and the
ratios to two plain Python loops: one builds the nodes, edges and labels of the same windows but none of their features,
the other is the same code, interpreted.
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # before polars is imported: the figures are for one core
os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from kdgat.canbus import (
    Messages,
    WindowConfig,
    make_vehicle,
    read_recording,
    simulate,
    windows_to_graphs,
    write_recording,
)
from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES
from kdgat.canbus.features.features import FeatureState
from kdgat.graphs import GraphColumns

TARGET_BUILT, TARGET_READ_AND_BUILT = 2e6, 1e6  # messages a second
PLAIN_MESSAGES = 50_000
INTERPRETED_MESSAGES = 3_000
SUFFIXES = (".parquet", ".csv", ".log", ".txt")

PlainGraphs = list[tuple[list[int], list[tuple[int, int]], list[int], list[int]]]


def main() -> None:
    """Measure each recording and all of them together, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each simulated drive")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--stride", type=int, default=100)
    parser.add_argument("--interpreted", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    config = WindowConfig(stride=arguments.stride)
    if arguments.interpreted:
        messages = read_recording(arguments.interpreted)
        print(best(lambda: windows_to_graphs(messages, config), 1))
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = (
            find_recordings(arguments.paths) if arguments.paths else write_simulated(Path(folder), arguments.messages)
        )
        measure_all(paths, config, arguments.repeats)


def measure_all(paths: list[Path], config: WindowConfig, repeats: int) -> None:
    """Print a row for each recording, then the totals against targets and plain Python."""
    print(f"windows of {config.size}, stride {config.stride}; one core; best of {repeats}; messages per CPU second")
    print(f"{'recording':<58}{'messages':>11}{'features':>12}{'built':>12}{'read + built':>14}")
    windows_to_graphs(read_recording(paths[0]), config)  # compiles
    num_messages, build_s, both_s = 0, 0.0, 0.0
    for path in paths:
        messages = read_recording(path)
        features_s = best(lambda: describe(messages), repeats)  # noqa: B023
        built_s = best(lambda: windows_to_graphs(messages, config), repeats)  # noqa: B023
        read_and_built_s = best(lambda: windows_to_graphs(read_recording(path), config), repeats)  # noqa: B023
        num = len(messages)
        print(
            f"{path.name[-57:]:<58}{num:>11,}{num / features_s:>12,.0f}{num / built_s:>12,.0f}"
            f"{num / read_and_built_s:>14,.0f}"
        )
        num_messages, build_s, both_s = num_messages + num, build_s + built_s, both_s + read_and_built_s
    for name, seconds, target in (
        ("built once read", build_s, TARGET_BUILT),
        ("read and built", both_s, TARGET_READ_AND_BUILT),
    ):
        rate = num_messages / seconds
        print(f"{name}: {rate / 1e6:.2f} M messages/s, {rate / target:.2f} times the target of {target / 1e6:.0f} M")
    compare(read_recording(paths[0]).select(slice(PLAIN_MESSAGES)), config, repeats)


def compare(messages: Messages, config: WindowConfig, repeats: int) -> None:
    """Print the ratio to the plain Python loop, after checking that both build the same graphs."""
    check(windows_to_graphs(messages, config), build_plainly(messages, config))
    compiled_s = best(lambda: windows_to_graphs(messages, config), repeats)
    plain_s = best(lambda: build_plainly(messages, config), 1)
    print(
        f"plain Python, nodes, edges and labels without features: {len(messages) / plain_s:,.0f} messages/s; "
        f"compiled, with {len(NODE_FEATURES)} node and {len(EDGE_FEATURES)} edge features: "
        f"ratio {plain_s / compiled_s:.1f}"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slice.parquet"
        write_recording(path, messages.select(slice(INTERPRETED_MESSAGES)))
        output = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--interpreted", path, f"--stride={config.stride}"],
            env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
    interpreted_s = float(output[0]) / INTERPRETED_MESSAGES
    print(
        f"same code interpreted, all features: {1 / interpreted_s:,.0f} messages/s; "
        f"compiled: ratio {interpreted_s / (compiled_s / len(messages)):.0f}"
    )


def best(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest CPU time of several calls, seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()  # other work on the machine does not count, other threads of this process do
        work()
        times.append(time.process_time() - start)
    return min(times)


def describe(messages: Messages) -> None:
    """Compute the message features alone."""
    payload = messages.payload.view("<u8").reshape(-1)
    FeatureState().describe(messages.timestamp, messages.identifier, payload, messages.length)


def build_plainly(messages: Messages, config: WindowConfig) -> PlainGraphs:
    """Build each window's ids, edges sorted by (destination, source) as (source, destination), their counts, labels."""
    ids, labels = messages.identifier.tolist(), messages.label.tolist()
    graphs: PlainGraphs = []
    for start in range(0, len(ids) - config.size + 1, config.stride):
        nodes: dict[int, int] = {}
        attacked: list[int] = []
        places = []
        for row in range(start, start + config.size):
            place = nodes.setdefault(ids[row], len(nodes))
            if place == len(attacked):
                attacked.append(0)
            attacked[place] |= int(labels[row] != 0)
            places.append(place)
        counts: dict[tuple[int, int], int] = {}
        for source, target in pairwise(places):
            counts[target, source] = counts.get((target, source), 0) + 1
        pairs = sorted(counts)
        edges = [(source, target) for target, source in pairs]
        graphs.append((list(nodes), edges, [counts[pair] for pair in pairs], attacked))
    return graphs


def check(graphs: GraphColumns, plain: PlainGraphs) -> None:
    """Refuse to compare builders of different graphs."""
    assert graphs.num_graphs == len(plain)
    assert graphs["node_id"].tolist() == [identifier for nodes, _, _, _ in plain for identifier in nodes]
    assert [tuple(pair) for pair in graphs.edge_index.T.tolist()] == [
        pair for _, edges, _, _ in plain for pair in edges
    ]
    counts = (2.0 ** graphs.edge_attr[:, 0] - 1.0).round().astype(int)
    assert counts.tolist() == [count for _, _, part, _ in plain for count in part]
    assert graphs["node_y"].tolist() == [mark for _, _, _, attacked in plain for mark in attacked]


def find_recordings(paths: list[Path]) -> list[Path]:
    """List the recordings at or below some paths."""
    found = [
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.suffix in SUFFIXES and file.is_file()
    ]
    if not found:
        raise SystemExit(f"no recording ({', '.join(SUFFIXES)}) below {', '.join(map(str, paths))}; name one")
    return found


def write_simulated(folder: Path, num_messages: int) -> list[Path]:
    """Write simulated drives of two vehicles, one of them attacked."""
    paths = []
    for seed, attack in ((0, None), (1, "fuzzing")):
        vehicle = make_vehicle(seed)
        duration_s = 1.05 * num_messages / float((1 / vehicle.period_s).sum())
        path = folder / f"simulated__{attack or 'attack-free'}.parquet"
        write_recording(path, simulate(vehicle, duration_s, attack, seed=seed).select(slice(num_messages)))
        paths.append(path)
    return paths


if __name__ == "__main__":
    main()
