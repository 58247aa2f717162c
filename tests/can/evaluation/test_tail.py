"""Peaks over a level: what a generalised Pareto tail says of scores that nobody has seen yet."""

import numpy as np
import pytest

from kdgat.base.errors import UserError
from kdgat.can.evaluation.tail import Tail


def test_the_quantile_of_an_exponential_tail_is_found_beyond_the_sample() -> None:
    scores = np.random.default_rng(0).exponential(size=20_000)
    tail = Tail.fit(scores)
    assert tail.score_at(1e-5) == pytest.approx(np.log(1e5), rel=0.1)


def test_a_heavy_tail_reaches_further_than_an_exponential_one() -> None:
    generator = np.random.default_rng(1)
    heavy, light = Tail.fit(generator.pareto(4.0, 50_000)), Tail.fit(generator.exponential(size=50_000))
    assert heavy.shape == pytest.approx(0.25, abs=0.08)
    assert light.shape < 0.08
    assert heavy.score_at(1e-5) == pytest.approx(1e5**0.25 - 1.0, rel=0.35)


def test_score_and_share_are_inverse() -> None:
    tail = Tail.fit(np.random.default_rng(2).standard_t(5, size=5000))
    for share in (1e-2, 1e-3, 1e-5):
        assert tail.share_above(tail.score_at(share)) == pytest.approx(share)


def test_a_tail_that_ends_is_not_believed_to_end() -> None:
    scores = np.random.default_rng(3).random(5000)  # none above 1
    tail = Tail.fit(scores)
    assert tail.shape == 0.0
    assert tail.score_at(1e-6) > 1.0


def test_equal_scores_have_a_tail_at_their_value() -> None:
    assert Tail.fit(np.full(2000, -7.0)).score_at(1e-4) == pytest.approx(-7.0, abs=1e-6)


@pytest.mark.parametrize("scores", [np.zeros(10), np.append(np.zeros(100), np.nan)])
def test_few_or_broken_scores_have_no_tail(scores: np.ndarray) -> None:
    with pytest.raises(UserError, match="finite scores"):
        Tail.fit(scores)
