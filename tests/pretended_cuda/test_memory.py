"""A card with little memory: what is said of it, what is found to fit it, and what is written when it runs out."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import global_mean_pool

from kdgat.stage import FailureKind, RunDirectory
from kdgat.stage.runner import describe_exception, failure_kind
from kdgat.training import TrainingConfig
from kdgat.training.batch_size.search import BatchDecision, decision_path
from kdgat.training.fit import fit
from kdgat.training.gpu_memory import memory_watched
from tests.pretended_cuda.device import CUDA, OnDevice
from tests.pretended_cuda.memory import GIB
from tests.training.column_training import NODE_FEATURES, RingSource, make_config, ring_columns

MIB = 1 << 20
RINGS = np.random.default_rng(1).integers(3, 12, 400)


class Network(LightningModule):
    """Two layers, whose steps take memory in proportion to their nodes."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(len(NODE_FEATURES), hidden), nn.Linear(hidden, 1)
        self.products: set[str] = set()

    def loss(self, batch: Batch) -> Tensor:
        self.products.add(torch.get_float32_matmul_precision())
        hidden = self.first(batch.x).relu()
        return self.last(global_mean_pool(hidden, batch.batch, batch.num_graphs)).square().mean()

    def training_step(self, batch: Batch) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Batch) -> None:
        self.log("validation_loss", self.loss(batch))


def leave(size: int) -> None:
    """Let others take the card's memory, but for so many bytes."""
    OnDevice.memory.others = OnDevice.memory.total - size


def train(path: Path, network: Network | None = None, rings: int = 400, **changes: Any) -> tuple[Network, RunDirectory]:
    """Fit a network on the card, in one epoch, of one batch where nothing else is said."""
    path.mkdir(exist_ok=True)
    given = {"accelerator": "auto", "batch_size_mode": "fixed", "memory_budget": None, "batch_size": rings}
    config, network = make_config(**{**given, **changes}), network or Network()
    sources = [RingSource(ring_columns(RINGS[:number]), config, number == rings) for number in (rings, min(rings, 40))]
    fit(network, *sources, config, directory := RunDirectory(path), 0)
    return network, directory


def events(path: Path) -> list[str]:
    """Return what a snapshot says that happened, in its order."""
    return [event["action"] for event in pickle.loads(path.read_bytes())["device_traces"][0]]


def test_the_memory_of_a_card_stands_in_progress_and_work(tmp_path: Path) -> None:
    _, directory = train(tmp_path)
    progress, work = json.loads(directory.progress_path.read_text()), directory.read_work()
    assert work is not None
    assert work.gpu_free_mib is not None
    assert 1 <= work.gpu_mib <= work.gpu_reserved_mib < 64 * 1024
    assert work.gpu_free_mib == (64 * GIB - OnDevice.memory.reserved) // MIB
    assert 0 < progress["gpu_allocated_bytes"] < progress["gpu_peak_bytes"] <= progress["gpu_reserved_bytes"]


@pytest.mark.parametrize("mode", ["static", "tuner", "trial"])
def test_batches_are_as_large_as_what_others_leave_of_a_card(tmp_path: Path, mode: str) -> None:
    found = []
    for size in (MIB, 2 * MIB):
        leave(size)
        path = tmp_path / str(size)
        train(path, batch_size_mode=mode, batch_size=4, safety_factor=1.0)
        found.append(BatchDecision.model_validate_json(decision_path(path / "checkpoints").read_bytes()).found)
        assert OnDevice.memory.peak <= size
    assert 8 <= found[0] < found[1] < len(RINGS)


def test_memory_that_ran_out_is_written_with_what_came_before_also_where_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave(MIB)
    train(tmp_path, memory_snapshot=True)
    assert "batches are cut into 2 parts from now on" in caplog.text
    seen = events(tmp_path / "memory_snapshot.pickle")
    assert seen[-1] == "oom"
    assert {"alloc", "free_completed"} <= set(seen)
    assert OnDevice.memory.events is None, "nothing is recorded any more"


def test_a_snapshot_is_written_at_the_end_where_memory_suffices_and_changes_no_weight(tmp_path: Path) -> None:
    plain, _ = train(tmp_path / "plain")
    recorded, _ = train(tmp_path / "recorded", memory_snapshot=True)
    assert "oom" not in events(tmp_path / "recorded" / "memory_snapshot.pickle")
    assert not list((tmp_path / "plain").glob("*.pickle"))
    for one, other in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@pytest.mark.parametrize("is_recorded", [False, True])
def test_too_little_memory_for_one_graph_says_who_has_it_and_what_to_do(tmp_path: Path, is_recorded: bool) -> None:
    leave(60_000)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        train(tmp_path, Network(hidden=1024), rings=4, memory_snapshot=is_recorded)
    evidence = describe_exception(caught.value)
    assert failure_kind(caught.value) is FailureKind.CUDA_OOM
    assert "Of the GPU's 80.00 GiB tensors took 0.00 GiB at most, torch holds 0.00 GiB, CUDA and other" in evidence
    assert "processes 80.00 GiB, and 0.00 GiB are free: ask for a GPU with more memory (gpu_type), or for" in evidence
    snapshot = tmp_path / "memory_snapshot.pickle"
    expected = f"{snapshot} shows it in https://pytorch.org/memory_viz" if is_recorded else "training.memory_snapshot="
    assert expected in evidence.splitlines()[-1]
    assert snapshot.exists() == is_recorded


def test_recorded_steps_are_not_cut_which_the_error_says(tmp_path: Path) -> None:
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        memory_watched(TrainingConfig(capture=True), RunDirectory(tmp_path), "", CUDA, is_first=True),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "or training.capture=false, with which batches are cut until they fit; " in describe_exception(caught.value)


def test_products_of_single_precision_are_tf32_while_it_trains(tmp_path: Path) -> None:
    network, directory = train(tmp_path, precision="tf32")
    assert network.products == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"
    assert directory.work.precision == "tf32"
    assert all(one.dtype == torch.float32 for one in network.parameters())


def test_memory_is_taken_until_no_tensor_holds_it_and_runs_out() -> None:
    memory = OnDevice.memory
    whole = torch.zeros(1000, device="cuda")
    part = whole[:10]
    assert (memory.allocated, memory.reserved, memory.peak) == (4000, 4000, 4000)
    del whole
    assert memory.allocated == 4000, "of a view"
    del part
    assert (memory.allocated, torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]) == (0, 4000, 64 * GIB - 4000)
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info() == (64 * GIB, 80 * GIB)
    leave(3999)
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 0\.00 MiB"):
        torch.zeros(1000, device="cuda")
    assert memory.allocated == 0
