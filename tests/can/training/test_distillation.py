from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Batch

from kdgat.base import UserError
from kdgat.can.data.pool import PooledStores
from kdgat.can.training.distillation import TeacherOutputs, distil_bernoulli
from kdgat.can.training.sampling import PoolSource
from kdgat.training import TrainingConfig
from tests.canbus.features.planted_graphs import planted_columns


class CountingTeacher:
    """A teacher whose outputs can be recognised, and that counts the windows it sees."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        self.seen += int(batch.num_graphs)
        return {"window_logit": batch.graph_index.float()}, {"features": 2 * batch.x}


def make_pool() -> PooledStores:
    return PooledStores([planted_columns(20, seed=0), planted_columns(15, seed=1)], ["train", "injected"])


def test_gathered_outputs_belong_to_the_windows_of_the_batch(tmp_path: Path) -> None:
    pool, teacher = make_pool(), CountingTeacher()
    outputs = TeacherOutputs.compute(tmp_path / "teacher", pool, teacher, {"teacher": "a"})
    source = PoolSource(pool, np.arange(35), TrainingConfig(batch_size=6), 0, shuffle=True, store=outputs)
    for indices in source.plan(1):
        batch = source.gather(indices)
        torch.testing.assert_close(batch.teacher_window_logit, batch.graph_index.float())
        torch.testing.assert_close(batch.teacher_features, 2 * batch.x)


def test_the_teacher_sees_every_window_once_whatever_the_number_of_epochs(tmp_path: Path) -> None:
    pool, teacher = make_pool(), CountingTeacher()
    for _ in range(2):  # the second time is a resumed stage
        outputs = TeacherOutputs.compute(tmp_path / "teacher", pool, teacher, {"teacher": "a"})
    source = PoolSource(pool, np.arange(35), TrainingConfig(batch_size=8), 0, shuffle=True, store=outputs)
    for epoch in range(3):
        for indices in source.plan(epoch):
            source.gather(indices)
    assert teacher.seen == 35


def test_outputs_of_another_teacher_are_refused(tmp_path: Path) -> None:
    TeacherOutputs.compute(tmp_path / "teacher", make_pool(), CountingTeacher(), {"teacher": "a"})
    with pytest.raises(UserError, match="'b'"):
        TeacherOutputs.compute(tmp_path / "teacher", make_pool(), CountingTeacher(), {"teacher": "b"})


def test_a_half_written_folder_is_not_taken_for_outputs(tmp_path: Path) -> None:
    def dies(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TeacherOutputs.compute(tmp_path / "teacher", make_pool(), dies, {})
    assert not (tmp_path / "teacher").exists()
    teacher = CountingTeacher()
    TeacherOutputs.compute(tmp_path / "teacher", make_pool(), teacher, {})
    assert teacher.seen == 35


def test_only_the_windows_asked_for_are_computed(tmp_path: Path) -> None:
    teacher = CountingTeacher()
    pool = make_pool()
    outputs = TeacherOutputs.compute(tmp_path / "teacher", pool, teacher, {}, np.array([30, 2]))
    assert teacher.seen == 2
    batch = outputs.gather(np.array([2, 30]))
    torch.testing.assert_close(batch.teacher_features, 2 * batch.x)


def test_imitation_equals_the_softmax_form_over_two_classes() -> None:
    student, teacher, temperature = torch.randn(50), 3 * torch.randn(50), 4.0

    def two(logit: Tensor) -> Tensor:
        return torch.stack([torch.zeros_like(logit), logit], dim=1) / temperature

    expected = temperature**2 * functional.kl_div(
        two(student).log_softmax(1), two(teacher).log_softmax(1), reduction="batchmean", log_target=True
    )
    torch.testing.assert_close(distil_bernoulli(student, teacher, temperature), expected)
    assert distil_bernoulli(teacher, teacher, temperature).item() == pytest.approx(0.0, abs=1e-5)
