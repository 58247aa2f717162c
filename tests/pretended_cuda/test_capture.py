"""Training by recorded steps ends with the bits of the same steps taken one operator after the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Batch

from kdgat.base import UserError
from kdgat.can.data.pool import PooledStores
from kdgat.can.models.attention import GraphAttentionNetwork
from kdgat.can.models.autoencoder import GraphAutoencoder
from kdgat.can.sections import AttentionConfig, AutoencoderConfig, DistillationConfig
from kdgat.can.training.distillation import TeacherOutputs
from kdgat.can.training.objective import AutoencoderObjective, DetectionObjective
from kdgat.can.training.sampling import PoolSource
from kdgat.stage import RunDirectory
from kdgat.training import TrainingConfig, seed_everything
from kdgat.training.capture import CapturedSteps, why_not
from kdgat.training.fit import fit
from kdgat.training.steps import LossWatch
from tests.canbus.features.planted_graphs import NUM_EDGE_FEATURES, NUM_NODE_FEATURES, planted_columns
from tests.pretended_cuda.device import CUDA, Graph, Seen

# Deterministic, so that on a card, too, the autoencoder's loss, which adds by atomics, has one sum.
CONFIG = TrainingConfig(
    max_epochs=3, batch_size=12, capture=True, deterministic=True, patience=None, checkpoint_interval_s=1e6
)


KINDS = ("detector", "autoencoder", "student detector", "student autoencoder")


def make_module(kind: str) -> DetectionObjective | AutoencoderObjective:
    seed_everything(0)
    features = NUM_NODE_FEATURES, NUM_EDGE_FEATURES
    distillation = DistillationConfig() if kind.startswith("student") else None
    if kind.endswith("detector"):
        config = AttentionConfig(hidden=4, heads=2, layers=2, stem=8, dropout=0.2)
        return DetectionObjective(GraphAttentionNetwork(config, *features), distillation=distillation)
    model = GraphAutoencoder(AutoencoderConfig(hidden_dims=(16, 8, 4), heads=2), *features)
    return AutoencoderObjective(model, distillation, num_teacher_latent=5)


def teach(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return outputs of a teacher of both kinds of students."""
    nodes = {"node_logit": batch.x[:, 0], "latent": batch.x[:, :5].cos(), "reconstruction": batch.x.sin()}
    return {"window_logit": 2.0 * batch.y - 1.0}, nodes


def train(path: Path, kind: str, changes: dict[str, Any] | None = None) -> tuple[Tensor, Sequence[dict[str, Any]]]:
    """Return all weights, and the rows of all epochs; not all batches are of one size."""
    path.mkdir(exist_ok=True)
    config, module = CONFIG.model_copy(update=changes or {}), make_module(kind)
    pools = [PooledStores([planted_columns(40, seed=seed), planted_columns(30, seed=seed + 1)]) for seed in (0, 2)]
    taught = TeacherOutputs.compute(path / "teacher", pools[0], teach, {}) if kind.startswith("student") else None
    sources = [
        PoolSource(pool, np.arange(70), config, 0, shuffle=is_train, store=taught if is_train else None)
        for pool, is_train in zip(pools, (True, False), strict=True)
    ]
    result = fit(module, *sources, config, RunDirectory(path), 0)
    return torch.cat([one.detach().cpu().flatten() for one in module.parameters()]), result.history


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_are_the_same_steps(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, history = train(tmp_path / "recorded", kind)
    # The same on padded batches, each operator by itself.
    monkeypatch.setattr("kdgat.training.capture.CapturedSteps._record", lambda steps: _Eager(steps))
    eager, expected = train(tmp_path / "eager", kind)
    assert torch.equal(recorded, eager)
    assert history == expected


class _Eager(Graph):
    """Takes a step anew where a graph would be replayed."""

    def __init__(self, steps: Any) -> None:
        super().__init__()
        self.steps = steps
        if not steps._names:  # what is logged is known after a step, which must leave no trace
            state, of_device = torch.get_rng_state(), torch.cuda.get_rng_state()
            weights = [one.detach().clone() for one in steps._parameters]
            steps._take()
            with torch.no_grad():
                for parameter, weight in zip(steps._parameters, weights, strict=True):
                    parameter.copy_(weight)
            steps._optimizer.state.clear()
            torch.set_rng_state(state)
            torch.cuda.set_rng_state(of_device)

    def replay(self) -> None:
        groups = self.steps._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = self.steps._rate  # in single precision, as recorded steps have it
        self.steps._optimizer.zero_grad(set_to_none=True)
        self.steps._take()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


@pytest.mark.parametrize("kind", ["detector", "autoencoder"])
def test_a_killed_training_ends_with_the_same_bits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    expected, history = train(tmp_path / "whole", kind)
    step, taken = CapturedSteps.step, 0

    def dying(self: CapturedSteps, num_graphs: int) -> Tensor:
        nonlocal taken
        taken += 1
        if taken in (4, 8, 15):  # within an epoch, at its end, in the last one
            raise Killed
        return step(self, num_graphs)

    monkeypatch.setattr(CapturedSteps, "step", dying)
    for _ in range(3):
        with pytest.raises(Killed):
            train(tmp_path / "killed", kind, {"checkpoint_every_steps": 1})
    found, rows = train(tmp_path / "killed", kind, {"checkpoint_every_steps": 1})
    assert torch.equal(found, expected)
    assert rows == history


def test_steps_that_cannot_be_recorded_are_taken_one_by_one_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, history = train(tmp_path / "plain", "detector", {"capture": False})

    def no_memory() -> None:  # after the steps before a recording, which change weights and draw numbers
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", no_memory)
    found, rows = train(tmp_path / "by itself", "detector", {"capture": None})
    assert torch.equal(found, expected)
    assert rows == history
    assert caplog.text.count("one by one from now on, for they could not be recorded: CUDA out of memory") == 1
    with pytest.raises(torch.OutOfMemoryError):
        train(tmp_path / "asked for", "detector", {"capture": True})


def test_a_recording_that_leaves_no_random_numbers_ends_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Tensor:
        raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")

    def refused(steps: CapturedSteps) -> None:
        monkeypatch.setattr(torch, "rand", broken)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(CapturedSteps, "_record", refused)
    with pytest.raises(UserError, match=r"operation not permitted .*Offset increment .* set training.capture=false"):
        train(tmp_path, "detector", {"capture": None})


@pytest.mark.parametrize("began", [None, False])
def test_a_training_goes_on_as_it_began(
    began: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    class Killed(BaseException):
        pass

    expected, history = train(tmp_path / "whole", "detector", {"capture": began})
    note = LossWatch.note

    def dying(watch: LossWatch, epoch: int, step: int, *rest: Any) -> None:
        note(watch, epoch, step, *rest)
        if (epoch, step) == (1, 3):
            raise Killed

    monkeypatch.setattr(LossWatch, "note", dying)
    with pytest.raises(Killed):
        train(tmp_path / "killed", "detector", {"capture": began, "checkpoint_every_steps": 1})
    monkeypatch.setattr(LossWatch, "note", note)
    seen.clear()
    found, rows = train(tmp_path / "killed", "detector", {"capture": None})
    assert torch.equal(found, expected)
    assert rows == history
    assert (seen.operators["graph"] > 0) == (began is None)


@pytest.mark.parametrize("kind", KINDS)
def test_padded_training_is_that_of_plain_batches_but_for_last_bits(kind: str, tmp_path: Path) -> None:
    _, history = train(tmp_path / "recorded", kind)
    _, expected = train(tmp_path / "plain", kind, {"capture": False})
    assert [row["step"] for row in history] == [row["step"] for row in expected]
    # Dropout and sampling draw other numbers for other shapes.
    assert history[0]["train_loss"] == pytest.approx(expected[0]["train_loss"], rel=0.1)


def test_a_step_is_one_upload_and_one_graph(tmp_path: Path, seen: Seen) -> None:
    train(tmp_path / "more", "detector")
    assert seen.operators["graph"] == 3 * 6
    assert max(count for line, count in seen.uploads.items() if line.startswith("graphs/padding.py")) == 3 * 6


def test_what_cannot_be_recorded_is_said_and_trained_as_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = TrainingConfig(max_epochs=1, batch_size=12, capture=True, accumulate=2)
    module, pool = make_module("detector"), PooledStores([planted_columns(40)])
    source = PoolSource(pool, np.arange(40), config, 0, shuffle=True)
    assert fit(module, source, source, config, RunDirectory(tmp_path), 0).epochs == 1
    assert "training.capture=true changes nothing: batches are gone through in parts" in caplog.text


def test_steps_of_several_processes_are_not_recorded_which_is_said() -> None:
    source = PoolSource(PooledStores([planted_columns(40)]), np.arange(40), CONFIG, 0, shuffle=True)
    source.place_on(CUDA)
    module = make_module("detector")
    assert why_not(CONFIG, CUDA, module, source, 1) == ""
    assert why_not(CONFIG, CUDA, module, source, 2).startswith("several processes train together")
