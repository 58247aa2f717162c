"""Measure from logs to graphs on all cores, beside polars, which merely reads the same files: both sides in turns.

Run `python benchmarks/log_to_graphs.py [FOLDER] [--repeats K]`: FOLDER has Parquet recordings; without one, drives are
simulated. They are written as CSV, too. Each side works at as many files at once as there are cores, the largest first.
Prints messages per second of wall and of CPU time, and how far a third of the speed of polars is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl

from kdgat.canbus import Messages, WindowConfig, make_vehicle, read_recording, simulate, write_recording
from kdgat.canbus.features import window_chunks

CORES = len(os.sched_getaffinity(0))
TARGET, SHARE = 5e6, 1 / 3  # messages a second from Parquet, or this share of the speed at which polars reads
WINDOWS = WindowConfig()


def main() -> None:
    """Write the files, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--messages", type=int, default=1_000_000, help="of each of four simulated drives")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = (
            sorted(arguments.folder.glob("*.parquet")) if arguments.folder else write_simulated(Path(folder), arguments)
        )
        found.sort(key=lambda path: -path.stat().st_size)
        recordings = [read_recording(path) for path in found]
        num_messages = sum(map(len, recordings))
        files = {"Parquet": found, "CSV": [write_csv(Path(folder) / f"{path.stem}.csv", messages)
                                           for path, messages in zip(found, recordings, strict=True)]}  # fmt: skip
        print(
            f"{len(found)} recordings, {num_messages:,} messages, {CORES} cores, load {os.getloadavg()[0]:.1f}; "
            f"windows of {WINDOWS.size}, stride {WINDOWS.stride}; median of {arguments.repeats}; million messages/s"
        )
        print(f"{'':<10}{'':<26}{'wall':>8}{'CPU':>8}")
        for name, paths in files.items():
            works: dict[str, Callable[[Path], object]] = {
                "polars, reading": pl.read_parquet if name == "Parquet" else pl.read_csv,
                "kdgat, reading": read_recording,
                "kdgat, log to graphs": to_graphs,
            }
            speeds = measure(works, paths, num_messages, arguments.repeats)
            for work, (wall, cpu) in speeds.items():
                print(f"{name:<10}{work:<26}{wall / 1e6:>8.2f}{cpu / 1e6:>8.2f}")
            graphs, reading = speeds["kdgat, log to graphs"][0], speeds["polars, reading"][0]
            print(
                f"{name:<10}{graphs / (SHARE * reading):.2f} of a third of polars, {graphs / TARGET:.2f} of 5 million/s"
            )


def to_graphs(path: Path) -> int:
    """Read one recording and build its graphs, some at a time."""
    return sum(graphs.num_graphs for graphs in window_chunks(read_recording(path), WINDOWS))


def measure(
    works: dict[str, Callable[[Path], object]], paths: Sequence[Path], num_messages: int, repeats: int
) -> dict[str, tuple[float, float]]:
    """Return messages per second of wall and of CPU time; sides in turns, the first round warms."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(repeats + 1):
        for name, work in works.items():
            wall, cpu = time.perf_counter(), time.process_time()
            with ThreadPoolExecutor(CORES) as pool:
                list(pool.map(work, paths))
            taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    medians = {
        name: [statistics.median(column) for column in zip(*rows[1:], strict=True)] for name, rows in taken.items()
    }
    return {name: (num_messages / wall, num_messages / cpu) for name, (wall, cpu) in medians.items()}


def write_simulated(folder: Path, arguments: argparse.Namespace) -> list[Path]:
    """Write drives of four vehicles."""
    paths = []
    for seed in range(4):
        vehicle = make_vehicle(seed)
        duration_s = 1.05 * arguments.messages / float((1 / vehicle.period_s).sum())
        paths.append(folder / f"drive_{seed}.parquet")
        write_recording(paths[-1], simulate(vehicle, duration_s, None, seed=seed).select(slice(arguments.messages)))
    return paths


def write_csv(path: Path, messages: Messages) -> Path:
    """Write can-train-and-test CSV."""
    rows = zip(
        messages.timestamp.tolist(), messages.identifier.tolist(), messages.payload, messages.length.tolist(),
        messages.label.tolist(), strict=True,
    )  # fmt: skip
    lines = [
        f"{stamp},{one:03X},{bytes(data[:size]).hex().upper()},{label}\n" for stamp, one, data, size, label in rows
    ]
    path.write_text("timestamp,arbitration_id,data_field,attack\n" + "".join(lines))
    return path


if __name__ == "__main__":
    main()
