"""A real `fit` on the device: killed and resumed, and with less memory than a batch needs."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from kdgat.gpu.networks import detector, random_windows
from kdgat.stage import RunDirectory, StageSpec
from kdgat.training import GraphSource, TrainingConfig, seed_everything
from kdgat.training.fit import fit
from kdgat.training.snapshot import weights_digest

if TYPE_CHECKING:
    from kdgat.gpu.check import Rows

NUM_WINDOWS: Final = 2048
EVERY_STEPS: Final = 10
KILL_AFTER: Final = 3  # checkpoints
FRACTION: Final = 0.6  # of the memory that a large batch takes
LARGE_BATCH: Final = 2048
LONG: Final = 30  # epochs
LIMIT_S: Final = 120.0
CAPTURE: Final = {"on": True, "off": False, "auto": None}  # what the processes are told
PARTS: Final = re.compile(r"batches are cut into (\d+) parts")  # what the log says where memory is short


def compare(device: str, rows: Rows) -> None:
    """Add whether a training that was killed ends as one that was not, and whether one without memory does."""
    with tempfile.TemporaryDirectory(prefix="kdgat-gpu-") as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        _compare_killed("killed by SIGKILL, deterministic", device, whole, killed, rows)
        if device == "cuda":
            folders = Path(folder) / "whole-captured", Path(folder) / "killed-captured"
            _compare_killed("killed by SIGKILL, steps captured", device, *folders, rows, "--capture", "on")
            for capture in ("off", "on"):
                options = ("--epochs", str(LONG), "--capture", capture)
                found = _train(device, Path(folder) / f"long-{capture}", *options)
                what = f"{LONG} epochs of 128 windows, {'captured' if capture == 'on' else 'step by step'}"
                rows.add(what=what, graphs_s=LONG * NUM_WINDOWS / found["seconds"])
            large_batch = ("--batch", str(LARGE_BATCH), "--epochs", "2")
            large = _train(device, Path(folder) / "large", *large_batch)
            memory = ("--memory", str(FRACTION * large["peak"]), "--capture", "auto")
            short = _train(device, Path(folder) / "short", *large_batch, *memory)
            rows.add(
                what=f"{FRACTION:.0%} of the memory that {LARGE_BATCH} windows take",
                same_bits=large["digest"] == short["digest"],
                detail=f"{short['parts']} parts; last losses {large['loss']:.8g} and {short['loss']:.8g}",
            )


def _compare_killed(what: str, device: str, whole: Path, killed: Path, rows: Rows, *options: str) -> None:
    undisturbed = _train(device, whole, *options)
    kills = _kill(device, killed, *options)
    resumed = _train(device, killed, *options)
    rows.add(
        what=what,
        kills=kills,
        same_bits=undisturbed["digest"] == resumed["digest"] and undisturbed["loss"] == resumed["loss"],
        detail=f"{undisturbed['steps']} steps; weights {undisturbed['digest']:.12}, {resumed['digest']:.12}",
    )


def _command(device: str, folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-P", "-m", "kdgat.gpu.survival", device, str(folder), *options]


def _train(device: str, folder: Path, *options: str) -> dict[str, Any]:
    done = subprocess.run(
        _command(device, folder, *options), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a training ended with status {done.returncode}: {done.stderr[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"parts": max(map(int, PARTS.findall(done.stderr)), default=1)}


def _kill(device: str, folder: Path, *options: str) -> int:
    """Begin a training and kill it in the middle, once it has written some checkpoints; return how often."""
    process = subprocess.Popen(_command(device, folder, *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + LIMIT_S
    seen: set[str] = set()
    while process.poll() is None and len(seen) < KILL_AFTER and time.monotonic() < until:
        seen |= {path.name for path in folder.glob("checkpoints/checkpoint-*.pt")}
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return int(process.returncode == -signal.SIGKILL)


def _fit(device: str, folder: Path, options: list[str]) -> None:
    given = dict(zip(options[::2], options[1::2], strict=True))
    if "--memory" in given:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(float(given["--memory"]) / total)
    batch, epochs = int(given.get("--batch", 128)), int(given.get("--epochs", 6))
    capture = CAPTURE[given.get("--capture", "off")]
    config = TrainingConfig(
        max_epochs=epochs,
        batch_size=batch,
        accelerator="cuda" if device == "cuda" else "cpu",
        capture=capture,
        deterministic=not capture and epochs < LONG,
        monitor="train_loss",
        patience=None,
        checkpoint_every_steps=EVERY_STEPS,
        checkpoint_margin_s=0.0,
    )
    directory = RunDirectory(folder).create(StageSpec(family="can", stage="normal", seed=0))
    seed_everything(0)
    module = detector(0.1)
    source = GraphSource.of(random_windows(NUM_WINDOWS), config, 0, shuffle=True)
    began = time.perf_counter()
    result = fit(module, source, None, config, directory, 0)
    last = result.history[-1]
    found = {"digest": weights_digest(module), "steps": last.get("step", 0), "loss": last["train_loss"]}
    found["peak"] = torch.cuda.max_memory_reserved() if device == "cuda" else 0  # bytes
    print(json.dumps(found | {"seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _fit(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
