"""A whole run on a server whose answers get lost comes to the weights of one elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_family.family import FAMILY, ToyConfig

from kdgat.run import run_locally
from tests.nfs.repeated import RepeatingServer, repeating_mount

pytestmark = pytest.mark.processes


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, RepeatingServer]]:
    with repeating_mount(tmp_path / "mount") as found:
        yield found


@pytest.fixture
def place(server: tuple[Path, RepeatingServer], folder: str) -> Path:
    return server[0] / folder


def test_a_run_comes_to_the_weights_of_one_elsewhere(
    place: Path, tmp_path: Path, server: tuple[Path, RepeatingServer]
) -> None:
    overrides = ("training.max_epochs=3", "training.checkpoint_every_steps=2")
    run = FAMILY.plan(ToyConfig.from_preset("quick", {"seeds": [0]}, overrides))
    weights = [run_locally(run, out)["line-seed0"].weights_path.read_bytes() for out in (tmp_path / "o", place / "o")]
    assert weights[0] == weights[1]
    assert server[1].repeated()["RENAME"] > 10
