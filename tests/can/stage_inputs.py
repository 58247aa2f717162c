"""Stores of planted windows and run directories for tests of stages."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from kdgat.can.kinds import KINDS
from kdgat.canbus.features import RECORDINGS, SCHEMA
from kdgat.graphs import GraphColumns, write_store
from kdgat.stage import RunDirectory, StageInput, StageSpec
from tests.canbus.features.planted_graphs import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, planted_columns
from tests.support.waiting import wait_until

NODE_FEATURES = tuple(f"node_{place}" for place in range(NUM_NODE_FEATURES))
EDGE_FEATURES = tuple(f"edge_{place}" for place in range(NUM_EDGE_FEATURES))
# stage input -> (windows, share of attacked ones)
STORES = {
    "train": (120, 0.2),
    "injected": (120, 0.5),
    "validation": (60, 0.3),
    "injected_validation": (60, 0.5),
    "test-test_01_known": (50, 0.4),
    "test-test_02_clean": (30, 0.0),
}
FAST = {"max_epochs": 3, "batch_size": 32, "learning_rate": 5e-3, "accelerator": "cpu"}
SMALL_GAT = {"hidden": 8, "heads": 2, "layers": 2, "stem": 16}
SMALL_AUTOENCODER = {"hidden_dims": [16, 8, 4], "heads": 2}


def write_planted_store(path: Path, columns: GraphColumns) -> None:
    """Write planted windows of two recordings."""
    write_store(
        path,
        SCHEMA,
        columns,
        node_features=NODE_FEATURES,
        edge_features=EDGE_FEATURES,
        attributes={RECORDINGS: ["first", "second"]},
        build={},
    )


def make_stores(folder: Path) -> dict[str, StageInput]:
    """Write all stores and return them as stage inputs."""
    inputs = {}
    for seed, (name, (num_graphs, share)) in enumerate(STORES.items()):
        path = folder / f"{name}.h5"
        write_planted_store(path, planted_columns(num_graphs, seed=seed, attack_share=share))
        inputs[name] = StageInput.of_file(path)
    return inputs


def make_stage(
    path: Path, stage: str, config: dict[str, Any], inputs: dict[str, StageInput], seed: int = 0, **weights: Path
) -> RunDirectory:
    """Create the run directory of one stage."""
    sources = inputs | {name: StageInput.of_file(file) for name, file in weights.items()}
    version = KINDS[stage].code_version
    spec = StageSpec(
        family="can", stage=stage, scale="large", seed=seed, config=config, inputs=sources, code_version=version
    )
    return RunDirectory(path).create(spec)


def kill_after_a_checkpoint(directory: RunDirectory, environment: dict[str, str]) -> None:
    """Start the stage as a process and SIGKILL it once it has written a checkpoint."""
    process = subprocess.Popen([sys.executable, "-m", "kdgat.stage", str(directory.path), "--quiet"], env=environment)
    try:
        wait_until(
            lambda: process.poll() is not None or any(directory.checkpoints_path.glob("checkpoint-*.pt")),
            "a checkpoint",
            interval_s=0.005,
        )
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
