"""Measure how fast recordings are read on one core, against a plain Python reader of the same files.

Run `python benchmarks/reading.py [--messages N] [--repeats K]`. Prints messages per second, the ratio to the plain
reader, and the peak memory of reading as a multiple of the arrays that are read (Linux only).
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # before polars is imported: the figures are for one core

import argparse
import csv
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from kdgat.canbus import Messages, make_vehicle, read_recording, simulate, write_recording

Columns = tuple[list[float], list[int], list[bytes], list[int]]


def main() -> None:
    """Write one simulated recording in every format, read it both ways, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    messages = simulated_messages(arguments.messages)
    num_bytes = sum(
        column.nbytes
        for column in (messages.timestamp, messages.identifier, messages.payload, messages.length, messages.label)
    )
    print(f"{len(messages):,} messages, {num_bytes / 1e6:.1f} MB as arrays, best of {arguments.repeats}, one core")
    print(f"{'format':<28}{'MB':>8}{'messages/s':>14}{'plain Python':>14}{'ratio':>8}{'peak memory / arrays':>22}")
    with tempfile.TemporaryDirectory() as folder:
        for name, (write, read_plainly) in FORMATS.items():
            path = Path(folder) / name
            write(path, messages)
            read = read_recording(path)  # compiles, and warms the page cache for both
            check(read, messages, read_plainly(path))
            seconds = min(timed(lambda: read_recording(path)) for _ in range(arguments.repeats))  # noqa: B023
            plain_s = timed(lambda: read_plainly(path))  # noqa: B023
            print(
                f"{name:<28}{path.stat().st_size / 1e6:>8.1f}{len(messages) / seconds:>14,.0f}"
                f"{len(messages) / plain_s:>14,.0f}{plain_s / seconds:>8.1f}{peak_bytes(path) / num_bytes:>22.1f}"
            )


def simulated_messages(num_messages: int) -> Messages:
    """Simulate drives of one vehicle until there are enough messages."""
    vehicle = make_vehicle(0)
    messages = simulate(vehicle, 1.3 * num_messages / float((1 / vehicle.period_s).sum()), "fuzzing", seed=0)
    return messages.select(slice(num_messages))


def timed(work: Callable[[], object]) -> float:
    """Return seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def check(read: Messages, written: Messages, plain: Columns) -> None:
    """Refuse to measure a reader that reads something else."""
    assert read.content_hash() == written.content_hash()
    assert read.timestamp.tolist() == plain[0]
    assert read.identifier.tolist() == plain[1]
    assert [bytes(p[:n]) for p, n in zip(read.payload, read.length.tolist(), strict=True)] == plain[2]
    assert read.label.tolist() == plain[3]


def peak_bytes(path: Path) -> float:
    """Return how much the peak memory of a fresh process grows by reading the file."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_grow, (str(path),))


def _grow(path: str) -> float:
    head = Path(path).with_suffix(".warm" + Path(path).suffix)
    write_recording(head, simulate(make_vehicle(0), 1.0)) if path.endswith(".parquet") else _copy_head(path, head)
    read_recording(head)  # imports and compiles what reading needs
    head.unlink()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of imports and compilation
    before = _memory_field("VmRSS")
    read_recording(path)
    return _memory_field("VmHWM") - before


def _memory_field(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return 1024.0 * float(status.split(f"{name}:")[1].split()[0])


def _copy_head(path: str, head: Path) -> None:
    with Path(path).open() as source:
        head.write_text("".join(next(source) for _ in range(1000)))


def _cells(messages: Messages) -> list[tuple[str, int, bytes, int]]:
    return [
        (f"{timestamp:.6f}", identifier, bytes(payload[:length]), label)
        for timestamp, identifier, payload, length, label in zip(
            messages.timestamp,
            messages.identifier.tolist(),
            messages.payload,
            messages.length,
            messages.label.tolist(),
            strict=True,
        )
    ]


def write_joined(path: Path, messages: Messages) -> None:
    """Write can-train-and-test CSV."""
    lines = [f"{t},{i:03X},{p.hex().upper()},{label}\n" for t, i, p, label in _cells(messages)]
    path.write_text("timestamp,arbitration_id,data_field,attack\n" + "".join(lines))


def write_split(path: Path, messages: Messages) -> None:
    """Write HCRL Car-Hacking CSV."""
    path.write_text(
        "".join(
            f"{t},{i:04x},{len(p)},{p.hex(',')}{',' if p else ''}{'RT'[label]}\n" for t, i, p, label in _cells(messages)
        )
    )


def write_candump(path: Path, messages: Messages) -> None:
    """Write a candump log, which has no labels."""
    path.write_text("".join(f"({t}) vcan0 {i:03X}#{p.hex().upper()}\n" for t, i, p, _ in _cells(messages)))
    messages.label[:] = 0


def read_parquet_plainly(path: Path) -> Columns:
    """Read Parquet row by row."""
    columns: Columns = ([], [], [], [])
    for timestamp, identifier, data_field, label, _ in pl.read_parquet(path).iter_rows():
        columns[0].append(timestamp)
        columns[1].append(identifier)
        columns[2].append(bytes.fromhex(data_field))
        columns[3].append(label)
    return columns


def read_joined_plainly(path: Path) -> Columns:
    """Read can-train-and-test CSV row by row."""
    columns: Columns = ([], [], [], [])
    with path.open(newline="") as stream:
        rows = csv.reader(stream)
        next(rows)
        for timestamp, identifier, data_field, label in rows:
            columns[0].append(float(timestamp))
            columns[1].append(int(identifier, 16))
            columns[2].append(bytes.fromhex(data_field))
            columns[3].append(int(label))
    return columns


def read_split_plainly(path: Path) -> Columns:
    """Read HCRL Car-Hacking CSV row by row."""
    columns: Columns = ([], [], [], [])
    with path.open(newline="") as stream:
        for row in csv.reader(stream):
            length = int(row[2])
            columns[0].append(float(row[0]))
            columns[1].append(int(row[1], 16))
            columns[2].append(bytes(int(byte, 16) for byte in row[3 : 3 + length]))
            columns[3].append(int(row[3 + length] == "T"))
    return columns


def read_candump_plainly(path: Path) -> Columns:
    """Read a candump log line by line."""
    columns: Columns = ([], [], [], [])
    with path.open() as stream:
        for line in stream:
            timestamp, _, frame = line.split()
            identifier, _, data = frame.partition("#")
            columns[0].append(float(timestamp[1:-1]))
            columns[1].append(int(identifier, 16))
            columns[2].append(bytes.fromhex(data))
            columns[3].append(0)
    return columns


FORMATS: dict[str, tuple[Callable[[Path, Messages], None], Callable[[Path], Columns]]] = {
    "train__recording.parquet": (write_recording, read_parquet_plainly),
    "can-train-and-test.csv": (write_joined, read_joined_plainly),
    "car-hacking.csv": (write_split, read_split_plainly),
    "candump.log": (write_candump, read_candump_plainly),
}


if __name__ == "__main__":
    np.seterr(all="raise")
    main()
