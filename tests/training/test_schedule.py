"""The learning rate rises, falls along a cosine, and depends on progress alone."""

import pytest

from kdgat.training import TrainingConfig
from kdgat.training.config import learning_rate

COSINE = TrainingConfig(learning_rate=1.0, warmup_fraction=0.2, final_learning_rate_fraction=0.1)


@pytest.mark.parametrize(("progress", "expected"), [(0.1, 0.5), (0.2, 1.0), (0.6, 0.55), (1.0, 0.1)])
def test_cosine_with_warm_up(progress, expected):
    assert learning_rate(COSINE, progress) == pytest.approx(expected)


def test_first_step_of_a_warm_up_is_not_lost():
    assert 0 < learning_rate(COSINE, 0.0) < 0.02


def test_constant_stays_after_the_warm_up():
    config = COSINE.model_copy(update={"schedule": "constant"})
    assert [learning_rate(config, progress) for progress in (0.2, 0.5, 0.99)] == [1.0, 1.0, 1.0]
