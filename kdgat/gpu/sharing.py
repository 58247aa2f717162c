"""Several trainings side by side on one card: what all of them do in a second."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from kdgat.gpu.step import make_stepper

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows

COUNTS: Final = (1, 2, 4)
NAMES: Final = ("GAT large",)
SECONDS: Final = 3.0
BEGIN_S: Final = 60.0  # in which all have to be ready


def measure(device: str, rows: Rows) -> None:
    """Add for each network and number of processes the graphs per second of all together."""
    for name in NAMES:
        for count in COUNTS:
            rows.add(network=name, processes=count, graphs_s=graphs_per_second(name, device, count))


def graphs_per_second(name: str, device: str, count: int) -> float:
    """Return what so many processes do together, each with one thread; they begin when all are ready."""
    with tempfile.TemporaryDirectory(prefix="kdgat-gpu-") as folder:
        command = [sys.executable, "-P", "-m", "kdgat.gpu.sharing", name, device, folder]
        processes = [
            subprocess.Popen([*command, str(place)], stdout=subprocess.PIPE, text=True) for place in range(count)
        ]
        try:
            until = time.monotonic() + BEGIN_S
            while len(list(Path(folder).glob("ready-*"))) < count and time.monotonic() < until:
                if any(process.poll() for process in processes):
                    raise RuntimeError("a training ended before all were ready: is the card for one process alone?")
                time.sleep(0.01)
            (Path(folder) / "go").touch()
            return sum(float(process.communicate(timeout=BEGIN_S)[0]) for process in processes)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _train(name: str, device: str, folder: Path, place: str) -> float:
    """Train for some seconds once all others are ready; return graphs per second."""
    torch.set_num_threads(1)
    stepper = make_stepper(name, device)
    stepper.train(10)
    (folder / f"ready-{place}").touch()
    while not (folder / "go").exists():
        time.sleep(0.001)
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        stepper.train(10, first=10 + steps)
        steps += 10
    return stepper.size * steps / (time.perf_counter() - began)


if __name__ == "__main__":
    print(_train(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
