"""A run whose node dies in the middle goes on from another node, when the lease of its locks is over."""

import sys
from pathlib import Path

import pytest

from tests.nfs.clients import SERVER, SHARED, Client
from tests.nfs.toy_run import STAGE
from tests.support.waiting import TIMEOUT_S, wait_until

pytestmark = pytest.mark.processes


def weights(out: Path) -> bytes:
    return next((out / "stages").glob(f"{STAGE.partition('-')[0]}*/weights.safetensors")).read_bytes()


def train(client: Client, out: Path, log: Path) -> int:
    process = client.start(sys.executable, "-m", "tests.nfs.toy_run", str(out), log=log)
    return process.wait(2 * TIMEOUT_S)


def test_a_node_that_dies_in_training_costs_no_step_beyond_its_checkpoint(
    nodes: list[Client], folder: str, tmp_path: Path
) -> None:
    log, first = tmp_path / "log", nodes[0]
    first.start(sys.executable, "-m", "tests.nfs.toy_run", str(SHARED / folder), log=log)
    wait_until(
        lambda: list((SERVER / folder).glob("stages/*/checkpoints/*")), "a checkpoint", log=lambda: log.read_text()
    )
    first.die()
    assert train(nodes[1], SHARED / folder, log) == 0, log.read_text()
    assert "going on from" in log.read_text() or any(
        "going on from" in path.read_text() for path in (SERVER / folder).glob("stages/*/stage.log")
    )
    assert train(nodes[2], tmp_path / "undisturbed", log) == 0, log.read_text()
    assert weights(SERVER / folder) == weights(tmp_path / "undisturbed")
