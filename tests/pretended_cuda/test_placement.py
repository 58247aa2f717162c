from pathlib import Path

import numpy as np
import pytest
import torch

from kdgat.can.data.pool import PooledStores
from kdgat.can.training.distillation import TeacherOutputs
from kdgat.canbus.features import SCHEMA
from kdgat.graphs import GraphStore, place_columns
from tests.can.stage_inputs import write_planted_store
from tests.canbus.features.planted_graphs import planted_columns
from tests.pretended_cuda.device import CUDA, Seen, on_the_processor

WINDOWS = np.array([30, 2, 2, 34, 19, 21])


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """Return two stores of files, whose rows are packed."""
    paths = {"train": tmp_path / "train.h5", "injected": tmp_path / "injected.h5"}
    for seed, (path, windows) in enumerate(zip(paths.values(), (20, 15), strict=True)):
        with on_the_processor():
            write_planted_store(path, planted_columns(windows, seed=seed))
    return paths


def test_a_batch_from_the_device_is_the_one_from_the_host(paths: dict[str, Path], seen: Seen) -> None:
    with on_the_processor():
        expected = PooledStores.open(paths).gather(WINDOWS)
    pool = PooledStores.open(paths)
    pool.place_on(CUDA)
    seen.clear()
    batch = pool.gather(WINDOWS)
    assert (seen.uploads.total(), seen.waits.total()) == (2, 0)
    assert seen.bytes_sent == 8 * (6 * len(WINDOWS) + len(WINDOWS) + 1)  # what is known per graph, and `ptr`
    assert set(expected.keys()) == set(batch.keys())
    for name in expected.keys():  # noqa: SIM118 - a batch is no mapping
        assert batch[name].device == CUDA, name
        assert torch.equal(batch[name].cpu(), expected[name]), name


def test_outputs_of_a_teacher_lie_on_the_device_beside_the_windows(
    paths: dict[str, Path], tmp_path: Path, seen: Seen
) -> None:
    with on_the_processor():
        pool = PooledStores.open(paths)
        outputs = TeacherOutputs.compute(
            tmp_path / "teacher",
            pool,
            lambda batch: ({"number": batch.graph_index.float()}, {"features": 2 * batch.x}),
            {},
        )
        expected = outputs.gather(WINDOWS)
    outputs.place_on(CUDA)
    seen.clear()
    batch = outputs.gather(WINDOWS)
    assert (seen.uploads.total(), seen.waits.total()) == (2, 0)
    for name in expected.keys():  # noqa: SIM118 - a batch is no mapping
        assert batch[name].device == CUDA, name
        assert torch.equal(batch[name].cpu(), expected[name]), name


def test_what_takes_too_much_of_the_memory_stays_on_the_host(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = GraphStore.open(paths["train"], SCHEMA).columns
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (10_000, 80 << 30))
    assert place_columns([columns], CUDA) is None
    pool = PooledStores.open(paths)
    pool.place_on(CUDA)
    assert pool.gather(WINDOWS).x.device.type == "cpu"
