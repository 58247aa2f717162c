"""Measure `kdgat detect`: a whole log against the time it was recorded in, one window, a flood, an hour of traffic.

Run `python benchmarks/detect.py [--messages N] [--rate R] [--model RUN_OR_FILE]`. Without a model a student with
random weights is exported, which takes as long. Prints, each on one core: the ratio of recorded time to wall and to
processor time of the whole program for a candump log; the time from a window's last message to its decision; how fast
graphs are built of a drive, and of one with a flood of identifiers; the peak memory of `--follow` over an hour's worth
of messages (of `--rate` a second).
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = os.environ["POLARS_MAX_THREADS"] = "1"

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from kdgat.can.detection.loading import load_detector
from kdgat.can.detection.watch import Watch
from kdgat.can.kinds import SMALL_ATTENTION
from kdgat.can.sections import AttentionConfig
from kdgat.canbus import Messages, WindowConfig, make_vehicle, simulate, stream_recording, windows_to_graphs
from kdgat.registry import find_model

PROGRAM = (sys.executable, "-m", "kdgat.cli.main", "detect")
TARGET_RATIO, TARGET_WINDOW_MS, TARGET_MB = 100.0, 1.0, 500.0
WARM_WINDOWS = 200


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=2000.0, help="messages a second of the hour that is followed")
    parser.add_argument("--model")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = find_model(arguments.model) if arguments.model else export_untrained(folder)
        log = folder / "drive.log"
        recorded_s = write_log(log, arguments.messages)
        whole_log(log, model, recorded_s, arguments.messages, arguments.repeats)
        one_window(log, model, "the model given" if arguments.model else "the student")
        one_window(log, export_untrained(folder, AttentionConfig(), "large.onnx"), "a large network")
        peer_window()
        identifier_flood()
        an_hour(log, model, round(3600 * arguments.rate))


def export_untrained(folder: Path, config: AttentionConfig = SMALL_ATTENTION, name: str = "student.onnx") -> Path:
    """Export a network with random weights, and a threshold that few windows reach; by default a student."""
    import torch

    from kdgat.can.data.pool import PooledStores
    from kdgat.can.detection.model_file import DetectorParameters, write_model
    from kdgat.can.models.attention import GraphAttentionNetwork
    from kdgat.can.models.scoring import describe_model, fit_standardisation
    from kdgat.canbus.features import EDGE_FEATURES, NODE_FEATURES

    torch.manual_seed(0)
    parameters = DetectorParameters(name="distill_gat", threshold=3.0)
    graphs = windows_to_graphs(simulate(make_vehicle(1), 20.0), parameters.windows)
    pool = PooledStores([graphs], features=(NODE_FEATURES, EDGE_FEATURES))
    model = GraphAttentionNetwork(config, pool.num_node_features, pool.num_edge_features).eval()
    fit_standardisation(model, pool, np.ones(pool.num_graphs, np.bool_))
    weights = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    write_model(folder / name, "onnx", weights, describe_model(model, pool), parameters)
    return folder / name


def write_log(path: Path, num_messages: int) -> float:
    """Write a simulated drive as candump does; return the seconds that it takes on the bus."""
    vehicle = make_vehicle(0)
    duration_s = 1.05 * num_messages / float((1 / vehicle.period_s).sum())
    messages = simulate(vehicle, duration_s, seed=0).select(slice(num_messages))
    append(path, messages, 0.0)
    return messages.duration_s


def append(path: Path, messages: Messages, shift_s: float) -> None:
    """Append messages to a candump log, later by some seconds."""
    columns = ((messages.timestamp + shift_s).tolist(), messages.identifier.tolist(), messages.payload, messages.length)
    with path.open("a") as file:
        file.writelines(
            f"({now:.6f}) vcan0 {one:03X}#{bytes(data[:length]).hex().upper()}\n"
            for now, one, data, length in zip(*columns, strict=True)
        )


def whole_log(log: Path, model: Path, recorded_s: float, num_messages: int, repeats: int) -> None:
    """Run the program on the log; its start and imports count."""
    command: list[str | Path] = [*PROGRAM, log, "--model", model, "--quiet", "--out", log.with_suffix(".alarms")]
    subprocess.run(command, check=False)  # compiles
    wall, processor = [], []
    for _ in range(repeats):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=False)
        wall.append(time.perf_counter() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(
        f"{num_messages:,} messages of {recorded_s:,.0f} s ({num_messages / recorded_s:,.0f} a second), program start "
        f"included: wall {min(wall):.2f} s, ratio {recorded_s / min(wall):.0f}; processor {min(processor):.2f} s, "
        f"ratio {recorded_s / min(processor):.0f}; target {TARGET_RATIO:.0f}"
    )


def one_window(log: Path, model: Path, name: str, num_windows: int = 2000) -> None:
    """Hand on one window's messages at a time, as a bus does that is read once per window."""
    watch = Watch(load_detector(model))
    took = []
    for chunk in stream_recording(log, 100):
        start = time.perf_counter()
        watch.feed(chunk)
        took.append(1e3 * (time.perf_counter() - start))
        if len(took) == num_windows + WARM_WINDOWS:
            break
    half, most = np.quantile(took[WARM_WINDOWS:], [0.5, 0.99])
    print(
        f"one window by {name}, from its last message to its decision: median {half:.2f} ms, 99 % {most:.2f} ms; "
        f"target {TARGET_WINDOW_MS}"
    )


def peer_window(num_windows: int = 500) -> None:
    """Time the published system's large network on one window, without what comes before it."""
    import torch
    from peer import PeerAttention, peer_batches

    torch.set_num_threads(1)
    network, batches = PeerAttention().eval(), peer_batches(64, 29, 60, 1)
    took = []
    with torch.inference_mode():
        for _ in range(num_windows + WARM_WINDOWS):
            batch = next(batches)
            start = time.perf_counter()
            network(batch)
            took.append(1e3 * (time.perf_counter() - start))
    half, most = np.quantile(took[WARM_WINDOWS:], [0.5, 0.99])
    print(f"one window by the peer's large network alone: median {half:.2f} ms, 99 % {most:.2f} ms")


def identifier_flood(rate: float = 1000.0, repeats: int = 3) -> None:
    """Build the graphs of a drive without and with an attacker who sends identifiers of 29 bits at random."""
    drive = simulate(make_vehicle(3), 120.0, seed=1)
    generator = np.random.default_rng(2)
    num_injected = round(rate * 0.6 * drive.duration_s)
    injected = {
        "timestamp": drive.timestamp[0] + drive.duration_s * np.sort(generator.uniform(0.3, 0.9, num_injected)),
        "identifier": generator.integers(0, 1 << 29, num_injected),
        "payload": generator.integers(0, 256, (num_injected, 8)),
        "length": np.full(num_injected, 8),
        "label": np.ones(num_injected),
    }
    order = np.argsort(np.concatenate([drive.timestamp, injected["timestamp"]]), kind="stable")
    columns = {
        name: np.concatenate([getattr(drive, name), values.astype(getattr(drive, name).dtype)])[order]
        for name, values in injected.items()
    }
    flooded = replace(drive, **columns)  # type: ignore[arg-type]
    windows_to_graphs(drive, WindowConfig())  # compiles
    for name, messages in (("a drive", drive), (f"with {num_injected:,} identifiers injected", flooded)):
        took = []
        for _ in range(repeats):
            start = time.process_time()
            windows_to_graphs(messages, WindowConfig())
            took.append(time.process_time() - start)
        print(f"graphs, {name}: {len(messages) / min(took) / 1e6:.2f} million messages per second of processor time")


def an_hour(log: Path, model: Path, num_messages: int) -> None:
    """Follow a log to which the drive is appended again and again, in a process of its own."""
    growing = log.with_name("growing.log")
    chunks = list(stream_recording(log))
    duration_s = float(chunks[-1].timestamp[-1] - chunks[0].timestamp[0]) + 0.01
    written, shift_s = 0, 0.0
    while written < num_messages:
        for chunk in chunks:
            append(growing, chunk.select(slice(num_messages - written)), shift_s)
            written = min(written + len(chunk), num_messages)
        shift_s += duration_s
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from kdgat.can.detection.loading import load_detector\nfrom kdgat.can.detection.watch import Watch\n"
        "from kdgat.canbus import follow_file\n"
        "watch = Watch(load_detector(Path(sys.argv[2])))\n"
        "num = sum(1 for _ in watch.run(follow_file(sys.argv[1], stop_at_end=True)))\n"
        "print(watch.summary.sentence())\nprint(Path('/proc/self/status').read_text())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, growing, model], check=True, capture_output=True, text=True)
    sentence, _, status = done.stdout.partition("\n")
    peak_mb = float(status.split("VmHWM:")[1].split()[0]) / 1024  # ru_maxrss would be that of this process, forked
    print(f"followed, an hour's worth: {sentence}; peak memory {peak_mb:.0f} MB; target {TARGET_MB:.0f}")


if __name__ == "__main__":
    main()
